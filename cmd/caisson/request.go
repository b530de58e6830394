package main

import (
	"context"
	"errors"
	"io"
	"math"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// asList returns a function to which the result of a request is passed: asList(a, cols)(api.ListRuns(…)). It prints the result
// with printList, or returns the error of the request.
func asList[T any](a *app, cols []column[T]) func([]T, error) error {
	return func(items []T, err error) error {
		if err != nil {
			return err
		}
		return printList(a, items, cols)
	}
}

// asOne is like asList, for requests whose result is one object, which it prints with printOne.
func asOne[T any](a *app, id func(T) string, rows func(T) [][2]string) func(T, error) error {
	return func(v T, err error) error {
		if err != nil {
			return err
		}
		return printOne(a, v, id(v), rows(v))
	}
}

// asDone is like asList, for requests that change an object, which it prints with printDone.
func asDone[T any](a *app, id func(T) string) func(T, error) error {
	return func(v T, err error) error {
		if err != nil {
			return err
		}
		return printDone(a, v, id(v))
	}
}

// asLog is like asList, for requests whose result is a text, which it copies to standard output.
func asLog(a *app) func(io.ReadCloser, error) error {
	return func(r io.ReadCloser, err error) error {
		if err != nil {
			return err
		}
		defer r.Close()
		return copySafely(a, a.out, r, safetext.Log)
	}
}

// isNotFound reports whether err says that the object of a request does not exist; a missing account, for example, is another error.
func isNotFound(err error) bool {
	return caisson.KindOf(err) == caisson.NotFound && caisson.FieldOf(err) == ""
}

// removed is the output of rm with -o json.
type removed struct {
	Removed string `json:"removed"`
}

// An objectRequest is a function that sends a request about the object with the name or id ref.
type objectRequest[T any] func(ctx context.Context, ref string) (T, error)

// forEachRef calls r for every ref and prints its result with printDone. It continues after an error, unless ctx has ended, and
// returns all errors.
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

// byID returns a request that parses the id with parse and calls do.
func byID[T any](parse func(string) (caisson.ID, error), do func(context.Context, caisson.ID) (T, error)) objectRequest[T] {
	return func(ctx context.Context, ref string) (v T, err error) {
		id, err := parse(ref)
		if err != nil {
			return v, err
		}
		return do(ctx, id)
	}
}

// removeEach is like forEachRef, for requests without a result.
func removeEach(ctx context.Context, a *app, refs []string, remove func(context.Context, string) error) error {
	id := func(r removed) string { return r.Removed }
	return forEachRef(ctx, a, refs, id, func(ctx context.Context, ref string) (removed, error) {
		return removed{ref}, remove(ctx, ref)
	})
}

// maxPage is the maximum number of items of a page, as the API limits it.
const maxPage = 1000

// collectPages requests pages until it has count items or there are no more. next returns the page of at most limit items that follows
// the item with the id after, or the first page for "", and whether there are more.
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

// A listRequest is a function that requests one page of a list, and reports whether there are more.
type listRequest[T any] func(context.Context, caisson.Filter) ([]T, bool, error)

// allPages is like collectPages, for a filter and without a limit.
func allPages[T any](ctx context.Context, f caisson.Filter, id func(T) string, list listRequest[T]) ([]T, error) {
	return collectPages(math.MaxInt, id, func(after string, limit int) ([]T, bool, error) {
		f.After, f.Limit = caisson.ID(after), limit
		return list(ctx, f)
	})
}
