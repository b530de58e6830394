// Package timing reports the durations of the parts of an operation to a caller that requests them.
package timing

import (
	"context"
	"time"
)

type timerKey struct{} // key of the function of WithTimer in a context

// WithTimer returns a context in which [RecordTime] calls spent. spent may be called from any goroutine.
func WithTimer(ctx context.Context, spent func(what string, d time.Duration)) context.Context {
	return context.WithValue(ctx, timerKey{}, spent)
}

// RecordTime calls the function that [WithTimer] has set in ctx, if any, with what, the name of a part of the work, and the
// time that has passed since the part began.
func RecordTime(ctx context.Context, what string, since time.Time) {
	if spent, ok := ctx.Value(timerKey{}).(func(string, time.Duration)); ok {
		spent(what, time.Since(since))
	}
}
