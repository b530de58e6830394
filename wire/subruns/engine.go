package subruns

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/caisson-dev/caisson"
)

// An engineClient is a client of the engine on behalf of one guest.
type engineClient struct {
	call    Call     // sends a request to the engine on behalf of the guest
	limiter *limiter // bounds the guest's requests to the engine in progress
}

// An agent describes an agent that the guest may start runs of.
type agent struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
}

// A run describes a run that was started by the guest's run or by one of its sub-runs.
type run struct {
	ID        caisson.ID        `json:"id"`
	Agent     string            `json:"agent"`
	State     caisson.RunState  `json:"state"`
	Answer    string            `json:"answer,omitempty"`
	Truncated bool              `json:"cut,omitempty"` // the answer is truncated
	Error     *caisson.RunError `json:"error,omitempty"`
	Cost      string            `json:"cost,omitempty"` // in US dollars, of all attempts; "" until the run has ended
}

// A startRequest is a guest's request to start a run.
type startRequest struct {
	Agent   string              `json:"agent"`
	Prompt  string              `json:"prompt"`
	Persona string              `json:"persona,omitempty"`
	History []caisson.Message   `json:"history,omitempty"`
	Model   string              `json:"model,omitempty"`
	Env     map[string]string   `json:"env,omitempty"`
	Limits  caisson.AgentLimits `json:"limits,omitzero"`
}

// budgetSpent is the engine's response to a request to start a run if a budget is used up.
type budgetSpent struct {
	Spent string `json:"spent"` // message that names the budget
}

// check returns an Invalid error if the agent or the prompt is missing.
func (s *startRequest) check() error {
	switch {
	case s.Agent == "":
		return caisson.Invalidf("agent", "is missing; use an id from the list of agents")
	case s.Prompt == "":
		return caisson.Invalidf("prompt", "is missing; describe the task")
	}
	return nil
}

// A budgetError reports that a budget that the run would be charged to is used up.
type budgetError struct{ msg string }

func (e *budgetError) Error() string { return e.msg }

// roundTrip sends a request to the engine and decodes its response into out. Once the request is sent, it waits for the response
// even if ctx is cancelled, because the engine counts the request against its limit until then.
func (e *engineClient) roundTrip(ctx context.Context, name string, in, out any) error {
	b, err := json.Marshal(in)
	if err != nil {
		return err
	}
	select {
	case e.limiter.engineSlots <- struct{}{}:
		defer func() { <-e.limiter.engineSlots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	got, err := e.call(context.WithoutCancel(ctx), name, b)
	if err != nil {
		if _, ok := errors.AsType[*caisson.Error](err); !ok {
			return caisson.Wrap(err, caisson.Unavailable, "the engine does not answer; try again in a moment")
		}
		return err
	}
	return json.Unmarshal(got, out)
}

// agents returns the agents that the guest may start runs of.
func (e *engineClient) agents(ctx context.Context) (list []agent, err error) {
	return list, e.roundTrip(ctx, "agents", nil, &list)
}

// start starts a run. If ctx is cancelled before the run has started, start cancels the run, because the client has not received
// its id.
func (e *engineClient) start(ctx context.Context, s startRequest) (*run, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	var got struct {
		run
		budgetSpent
	}
	if err := e.roundTrip(ctx, "start", s, &got); err != nil {
		return nil, err
	}
	if got.Spent != "" {
		return nil, &budgetError{got.Spent}
	}
	if ctx.Err() != nil {
		e.abandon(ctx, got.ID)
		return nil, ctx.Err()
	}
	return &got.run, nil
}

// get returns the current state of a run.
func (e *engineClient) get(ctx context.Context, id caisson.ID) (r *run, err error) {
	r = &run{}
	return r, e.roundTrip(ctx, "run", id, r)
}

// cancel cancels a run and returns its state.
func (e *engineClient) cancel(ctx context.Context, id caisson.ID) (r *run, err error) {
	r = &run{}
	return r, e.roundTrip(ctx, "cancel", id, r)
}

// abandon cancels a run whose result no client can receive. If that fails, the run ends with its parent run.
func (e *engineClient) abandon(ctx context.Context, id caisson.ID) {
	_, _ = e.cancel(context.WithoutCancel(ctx), id)
}

// Limits of polling the engine for the state of a run: the intervals, and the number of consecutive failures that are retried.
const (
	pollMin         = 50 * time.Millisecond // first interval
	pollMax         = time.Second           // longest interval
	maxPollFailures = 30
)

// await polls the engine until r has ended or ctx is done, and returns the last known state of the run. If see is not nil, it is
// called with the state of the run after each successful poll; an error from see stops the polling.
func (e *engineClient) await(ctx context.Context, r *run, see func(*run) error) (*run, error) {
	faults := 0
	for wait := pollMin; !r.State.Ended(); wait = min(wait*3/2, pollMax) {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return r, ctx.Err()
		}
		next, err := e.get(ctx, r.ID)
		switch kind := caisson.KindOf(err); {
		case err == nil:
			r, faults = next, 0
		case ctx.Err() != nil:
			return r, ctx.Err()
		case faults < maxPollFailures && (kind == caisson.Exhausted || kind == caisson.Unavailable):
			faults++
			continue
		default:
			return r, err
		}
		if see != nil {
			if err := see(r); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}
