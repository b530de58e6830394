package main

import (
	"context"
	"errors"
	"io"
	"math"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// asList returns a function that takes the result of a request, as in asList(a, cols)(api.ListRuns(…)). The function prints the
// items in the selected format: a table, ids only, JSON or YAML. After an error of the request, it only returns the error.
func asList[T any](a *app, cols []column[T]) func([]T, error) error {
	return func(items []T, err error) error {
		if err != nil {
			return err
		}
		return printList(a, items, cols)
	}
}

// asOne returns a function that takes the result of a request, as in asOne(a, id, rows)(api.GetRun(…)). The function prints the
// object in the selected format: its properties, only its id, JSON or YAML. After an error of the request, it returns the error.
func asOne[T any](a *app, id func(T) string, rows func(T) [][2]string) func(T, error) error {
	return func(v T, err error) error {
		if err != nil {
			return err
		}
		return printOne(a, v, id(v), rows(v))
	}
}

// asDone returns a function that takes the result of a request that changes an object, as in asDone(a, id)(api.CancelRun(…)).
// The function prints the object's id, or the object as JSON or YAML. After an error of the request, it only returns the error.
func asDone[T any](a *app, id func(T) string) func(T, error) error {
	return func(v T, err error) error {
		if err != nil {
			return err
		}
		return printDone(a, v, id(v))
	}
}

// asLog returns a function that takes the result of a request for a log or a file, as in asLog(a)(api.Logs(…)). The function
// copies the text to standard output, or returns the error of the request.
func asLog(a *app) func(io.ReadCloser, error) error {
	return func(r io.ReadCloser, err error) error {
		if err != nil {
			return err
		}
		defer r.Close()
		return copySafely(a, a.out, r, safetext.Log)
	}
}

// isNotFound reports whether err means that the object of a request does not exist, and not another object such as the account.
func isNotFound(err error) bool {
	return caisson.KindOf(err) == caisson.NotFound && caisson.FieldOf(err) == ""
}

// removedObject is the output of commands that remove objects with -o json.
type removedObject struct {
	Removed string `json:"removed"` // id or name of the object, as the user has given it
}

// An objectRequest is a function that sends a request about the object with the name or id ref.
type objectRequest[T any] func(ctx context.Context, ref string) (T, error)

// forEachRef calls r for every ref and prints each resulting object: its id, or the whole object as JSON or YAML. It continues
// after an error, unless ctx has ended, and returns all errors.
func forEachRef[T any](ctx context.Context, a *app, refs []string, id func(T) string, r objectRequest[T]) error {
	var errs []error
	for _, ref := range refs {
		if err := asDone(a, id)(r(ctx, ref)); err != nil {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// byID returns an objectRequest that parses ref as an id with parse and calls do with the id.
func byID[T any](parse func(string) (caisson.ID, error), do func(context.Context, caisson.ID) (T, error)) objectRequest[T] {
	return func(ctx context.Context, ref string) (v T, err error) {
		id, err := parse(ref)
		if err != nil {
			return v, err
		}
		return do(ctx, id)
	}
}

// removeEach calls remove for every ref and prints the ref. It continues after an error, unless ctx has ended, and returns all
// errors.
func removeEach(ctx context.Context, a *app, refs []string, remove func(context.Context, string) error) error {
	id := func(r removedObject) string { return r.Removed }
	return forEachRef(ctx, a, refs, id, func(ctx context.Context, ref string) (removedObject, error) {
		return removedObject{ref}, remove(ctx, ref)
	})
}

// maxPage is the maximum number of items in one page of a list, as in the API.
const maxPage = 1000

// collectPages requests pages of a list until it has count items or the list ends. next returns the page of at most limit items
// that follows the item with the id after, or the first page for "", and whether more pages follow.
func collectPages[T any](count int, id func(T) string, next func(after string, limit int) ([]T, bool, error)) ([]T, error) {
	var all []T
	var after string
	for more := true; more && len(all) < count; {
		var page []T
		var err error
		if page, more, err = next(after, min(count-len(all), maxPage)); err != nil {
			return nil, err
		}
		if len(page) == 0 {
			break
		}
		all, after = append(all, page...), id(page[len(page)-1])
	}
	return all, nil
}

// A listRequest is a function that requests one page of a list, and reports whether more pages follow.
type listRequest[T any] func(context.Context, caisson.Filter) ([]T, bool, error)

// allPages returns all items of a list that f selects, for which it requests every page. id returns the id of an item.
func allPages[T any](ctx context.Context, f caisson.Filter, id func(T) string, list listRequest[T]) ([]T, error) {
	return collectPages(math.MaxInt, id, func(after string, limit int) ([]T, bool, error) {
		f.After, f.Limit = caisson.ID(after), limit
		return list(ctx, f)
	})
}
