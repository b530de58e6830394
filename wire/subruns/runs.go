package subruns

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson"
)

// listAgents, startRun, showRun and cancelRun serve the paths of the HTTP API. They return the value to respond with as JSON.
func listAgents(_ http.ResponseWriter, r *http.Request, e *engineClient, _ string) (any, error) {
	list, err := e.agents(r.Context())
	if list == nil {
		list = []agent{}
	}
	return list, err
}

func startRun(w http.ResponseWriter, r *http.Request, e *engineClient, _ string) (any, error) {
	var s startRequest
	body, err := readBody(w, r)
	if err == nil {
		err = decode(body, true, &s)
	}
	if err != nil {
		return nil, err
	}
	started, err := e.start(r.Context(), s)
	if err == nil {
		w.Header().Set("Location", "/v1/runs/"+string(started.ID))
	}
	return started, err
}

func showRun(_ http.ResponseWriter, r *http.Request, e *engineClient, name string) (any, error) {
	id, err := caisson.ParseID(caisson.RunPrefix, name)
	if err != nil {
		return nil, err
	}
	wait, err := waitParam(r)
	if err != nil {
		return nil, err
	}
	got, err := e.get(r.Context(), id)
	if err == nil && wait > 0 {
		got, err = e.awaitFor(r.Context(), got, wait, nil)
	}
	return got, err
}

// awaitFor polls the engine, and calls see, until r has ended or the time wait has passed; neither is an error.
func (e *engineClient) awaitFor(ctx context.Context, r *run, wait time.Duration, see func(*run) error) (*run, error) {
	limited, stop := context.WithTimeout(ctx, wait)
	defer stop()
	r, err := e.await(limited, r, see)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = nil
	}
	return r, err
}

// waitParam returns how long the request waits for the run to end, from its wait parameter.
func waitParam(r *http.Request) (time.Duration, error) {
	for name, values := range r.URL.Query() {
		if name != "wait" || len(values) != 1 {
			return 0, caisson.Errorf(caisson.Invalid, "wait is the only parameter there is, once")
		}
		n, err := strconv.ParseUint(values[0], 10, 16)
		if err != nil || n > maxWait {
			return 0, caisson.Invalidf("wait", "%.20q is not a number of seconds up to %d", values[0], maxWait)
		}
		return time.Duration(n) * time.Second, nil
	}
	return 0, nil
}

func cancelRun(_ http.ResponseWriter, r *http.Request, e *engineClient, name string) (any, error) {
	id, err := caisson.ParseID(caisson.RunPrefix, name)
	if err != nil {
		return nil, err
	}
	return e.cancel(r.Context(), id)
}
