package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// KeyParam is the header with the key that makes a request safe to repeat.
type KeyParam struct {
	Key string `header:"Idempotency-Key" maxLength:"200" doc:"Chosen by the client. A repeated request with the same key gets the first one's answer; while that is being worked on, a conflict"`
}

// idempotency contains what [once] needs to make requests safe to repeat.
type idempotency struct {
	answers caisson.AnswerStore
	log     *slog.Logger
}

// finishTimeout is the time limit for storing an answer, which must happen even if the client has disconnected.
const finishTimeout = 10 * time.Second

// once calls do for the first request with a key, and stores the result. For later requests of the account with the same key,
// route and req it returns the stored result. If do fails, nothing is stored and the key can be used again. If key is empty, once
// only calls do.
func once[T any](ctx context.Context, i idempotency, key, route string, req any, do func() (T, error)) (T, error) {
	var zero T
	if key == "" {
		return do()
	}
	for _, c := range key {
		if c <= ' ' || c > '~' {
			return zero, caisson.Invalidf(protocol.IdempotencyHeader, "a key must have only printable ASCII characters")
		}
	}
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return zero, err
	}
	canonical, err := json.Marshal([]any{route, req})
	if err != nil {
		return zero, fmt.Errorf("fingerprint: %w", err)
	}
	answer, err := i.answers.Begin(ctx, caller.Account, key, sha256.Sum256(canonical), time.Now())
	if err != nil {
		return zero, err
	}
	if answer != nil {
		var v T
		if err := json.Unmarshal(answer, &v); err != nil {
			return zero, fmt.Errorf("stored answer: %w", err)
		}
		return v, nil
	}
	defer func() {
		// answer is nil if do failed or panicked; Finish then makes the key usable again.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
		defer cancel()
		if err := i.answers.Finish(ctx, caller.Account, key, answer); err != nil {
			i.log.ErrorContext(ctx, "the answer could not be stored; repeated requests with its key will get a conflict", "err", err)
		}
	}()
	v, err := do()
	if err != nil {
		return zero, err
	}
	if answer, err = json.Marshal(v); err != nil {
		return zero, fmt.Errorf("store answer: %w", err)
	}
	return v, nil
}
