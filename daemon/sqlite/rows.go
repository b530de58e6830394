package sqlite

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/caisson-dev/caisson"
)

// Limits of the pages of lists.
const (
	defaultPage = 100  // entries of a page if the request has no limit
	maxPage     = 1000 // maximum number of entries of a page
	// maxDocPage limits the size in bytes of a page of objects that can be long: the page ends after the object that exceeds it.
	maxDocPage = 16 << 20
)

// pageLimit returns the number of entries of a page for the requested limit; 0 means the default.
func pageLimit(limit int) (int, error) {
	switch {
	case limit == 0:
		return defaultPage, nil
	case limit < 0 || limit > maxPage:
		return 0, caisson.Invalidf("limit", "a page has 1 to %d entries", maxPage)
	}
	return limit, nil
}

// scanner reads the columns of a row. It is implemented by *sql.Row and *sql.Rows.
type scanner interface{ Scan(dest ...any) error }

// errPageFull is returned by a scan function of [readPage] to end the page before the current row.
var errPageFull = errors.New("enough rows")

// readPage returns a function that reads the rows of a query with scan until scan returns errPageFull. The argument n of scan is
// the number of rows before the current one. more reports whether scan has ended the page.
func readPage[T any](scan func(s scanner, n int) (T, error)) func(*sql.Rows, error) (page []T, more bool, err error) {
	return func(rows *sql.Rows, err error) (page []T, more bool, _ error) {
		if err != nil {
			return nil, false, err
		}
		defer rows.Close()
		for rows.Next() {
			one, err := scan(rows, len(page))
			if err == errPageFull {
				return page, true, nil
			}
			if err != nil {
				return nil, false, err
			}
			page = append(page, one)
		}
		return page, false, rows.Err()
	}
}

// readRows returns a function that reads all rows of a query with scan.
func readRows[T any](scan func(scanner) (T, error)) func(*sql.Rows, error) ([]T, error) {
	return func(rows *sql.Rows, err error) ([]T, error) {
		all, _, err := readPage(func(s scanner, _ int) (T, error) { return scan(s) })(rows, err)
		return all, err
	}
}

// scanDoc reads a row whose last column is the document of obj. The other columns are stored in dest. noun is the kind of the
// object, for errors.
func scanDoc(s scanner, noun string, obj any, dest ...any) error {
	var doc []byte
	if err := s.Scan(append(dest, &doc)...); err != nil {
		return err
	}
	return decodeDoc(noun, doc, obj)
}

// decodeDoc decodes a document into the value that into points to. noun is the kind of the object, for errors.
func decodeDoc(noun string, doc []byte, into any) error {
	if err := json.Unmarshal(doc, into); err != nil {
		return fmt.Errorf("decode stored %s: %w", noun, err)
	}
	return nil
}

// noRows returns nil if err reports that a query has found no row, and otherwise err.
func noRows(err error) error {
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return err
}
