package llm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
)

// refuse returns a [*dialect.Refusal] with a formatted message.
func refuse(status int, code, format string, args ...any) error {
	return refuseParam(status, code, "", format, args...)
}

// refuseParam returns a [*dialect.Refusal] with a formatted message, for the field param of the request; "" is no field.
func refuseParam(status int, code, param, format string, args ...any) error {
	return &dialect.Refusal{Status: status, Code: code, Param: param, Message: fmt.Sprintf(format, args...)}
}

// refuseRetry returns a refusal because of a limit, with the delay after which the call may be retried.
func refuseRetry(wait time.Duration, format string, args ...any) error {
	seconds := int((wait + time.Second - 1) / time.Second)
	return &dialect.Refusal{Status: http.StatusTooManyRequests, Code: "rate_limited", Message: fmt.Sprintf(format, args...), Retry: max(1, seconds)}
}

// refuseRate returns the refusal of a call that exceeds the rate limits r of its sandbox.
func refuseRate(wait time.Duration, r caisson.Rate) error {
	return refuseRetry(wait, "this sandbox may make %d calls and use %d tokens per minute (0: no limit); wait", r.Requests, r.Tokens)
}

// refuseBudget returns the refusal of a call whose maximum cost could not be reserved because of err.
func (g *Gateway) refuseBudget(ctx context.Context, err error) error {
	if over, ok := errors.AsType[*caisson.OverBudget](err); ok {
		if over.Busy {
			return refuseRetry(over.Retry, "%s", over.Error())
		}
		return refuse(http.StatusPaymentRequired, "over_budget", "%s", over.Error())
	}
	g.config.Log.LogAttrs(ctx, slog.LevelError, "budgets are not available", slog.Any("err", err))
	return refuse(http.StatusServiceUnavailable, "internal", "budgets are not available now; try again in a moment")
}
