// Package timing reports the durations of the parts of an operation to a caller that requests them.
package timing

import (
	"context"
	"time"
)

type timerKey struct{}

// WithTimer returns a context in which [RecordTime] calls spent, from any goroutine.
func WithTimer(ctx context.Context, spent func(what string, d time.Duration)) context.Context {
	return context.WithValue(ctx, timerKey{}, spent)
}

// RecordTime passes what, the name of a part of the work in ctx, and the time since its beginning to the function that
// [WithTimer] has set, if any.
func RecordTime(ctx context.Context, what string, since time.Time) {
	if spent, ok := ctx.Value(timerKey{}).(func(string, time.Duration)); ok {
		spent(what, time.Since(since))
	}
}
