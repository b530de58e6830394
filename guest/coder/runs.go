package coder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

const (
	maxToolAnswer   = 4 << 20     // maximum size of a response of the server of sub-runs, in bytes
	pollSeconds     = "30"        // seconds for which the server may delay the response to a request for a run's state
	minPollInterval = time.Second // minimum time between the starts of two requests for a run's state
	maxPollErrors   = 5           // number of consecutive failed requests for a run's state that are tolerated
)

// runTools returns the tools with which a model starts sub-runs. They send requests to the server s.
func runTools(s server) []tool {
	return []tool{{
		name:   "run_agent",
		about:  "Give a task to another agent, which works on it in a sandbox of its own and does not see your workspace, and wait for its answer. It counts against your own time and budget.",
		schema: `{"type":"object","properties":{"agent":{"type":"string","description":"id, as list_agents shows it"},"prompt":{"type":"string","description":"the task, with all that is needed to do it"},"model":{"type":"string","description":"alias; default: the agent's own"}},"required":["agent","prompt"]}`,
		run:    s.runAgent,
	}, {
		name:   "list_agents",
		about:  "List the agents that run_agent can give tasks to.",
		schema: `{"type":"object","properties":{}}`,
		run:    s.listAgents,
	}}
}

// requestJSON sends a request to the server of sub-runs and decodes the response into to. Other statuses than 2xx are errors of
// type *toolRefusal.
func (s server) requestJSON(ctx context.Context, method, path string, body []byte, to any) error {
	r, err := s.do(ctx, method, path, body, nil)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode < 200 || r.StatusCode > 299 {
		f := readFailure(r)
		return &toolRefusal{status: f.status, text: f.text}
	}
	b, err := io.ReadAll(&bounded{r.Body, maxToolAnswer + 1})
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}

// toolRefusal is an error response of the server of sub-runs. The request is not retried.
type toolRefusal struct {
	status int    // HTTP status of the response
	text   string // error message in the response
}

func (t *toolRefusal) Error() string { return fmt.Sprintf("refused (%d): %s", t.status, t.text) }

// agentRun is the state of a sub-run, with the fields of the API's run that are used.
type agentRun struct {
	ID     string            `json:"id"`     // id of the sub-run
	State  caisson.RunState  `json:"state"`  // state of the sub-run
	Answer string            `json:"answer"` // answer of the sub-run's agent
	Cut    bool              `json:"cut"`    // Answer was truncated by the server
	Error  *caisson.RunError `json:"error"`  // error of the sub-run; nil if there is none
}

// runAgent executes a call of the tool run_agent: it starts a sub-run and waits for its result.
func (s server) runAgent(ctx context.Context, args []byte) result {
	var in struct {
		Agent  string `json:"agent"`
		Prompt string `json:"prompt"`
		Model  string `json:"model,omitempty"`
	}
	if err := decodeArguments(args, &in); err != nil {
		return failedResult("%v", err)
	}
	if in.Agent == "" || in.Prompt == "" {
		return failedResult("agent and prompt are needed; list_agents shows the agents")
	}
	body, err := json.Marshal(in)
	if err != nil {
		return failedResult("%v", err)
	}
	var run agentRun
	if err := s.requestJSON(ctx, "POST", "/v1/runs", body, &run); err != nil {
		return failedResult("The run was not started: %v", err)
	}
	if !validSessionID(run.ID) || run.ID == "" {
		return failedResult("The run was not started: the answer has no id.")
	}
	if err := s.waitRun(ctx, &run); err != nil {
		return failedResult("Nothing is known of what became of run %s: %v", run.ID, err)
	}
	return runResult(&run)
}

// waitRun waits until the sub-run has ended, and updates run.
func (s server) waitRun(ctx context.Context, run *agentRun) error {
	id, faults := run.ID, 0
	for !run.State.Ended() {
		asked := time.Now()
		next := agentRun{}
		err := s.requestJSON(ctx, "GET", "/v1/runs/"+id+"?wait="+pollSeconds, nil, &next)
		_, refused := errors.AsType[*toolRefusal](err)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			*run, faults = next, 0
		case refused || faults == maxPollErrors:
			run.ID = id
			return err
		default:
			faults++
		}
		if !run.State.Ended() {
			if err := pause(ctx, minPollInterval-time.Since(asked)); err != nil {
				return err
			}
		}
	}
	run.ID = id
	return nil
}

// runResult returns the tool result for a sub-run that has ended.
func runResult(run *agentRun) result {
	if run.Cut {
		run.Answer += "\n[the answer was longer]"
	}
	switch {
	case run.Error != nil:
		return failedResult("Run %s failed: %v\n%s", run.ID, run.Error, run.Answer)
	case run.State != caisson.RunSucceeded:
		return failedResult("Run %s failed.\n%s", run.ID, run.Answer)
	}
	return result{text: run.Answer, changed: true}
}

// listAgents executes a call of the tool list_agents.
func (s server) listAgents(ctx context.Context, _ []byte) result {
	var all raw
	if err := s.requestJSON(ctx, "GET", "/v1/agents", nil, &all); err != nil {
		return failedResult("The agents cannot be listed: %v", err)
	}
	type agent struct {
		ID          string `json:"id"`
		Name        string `json:"name"`
		Description string `json:"description"`
	}
	var wrapped struct {
		Agents []agent `json:"agents"`
	}
	if json.Unmarshal(all, &wrapped.Agents) != nil && json.Unmarshal(all, &wrapped) != nil {
		return failedResult("The list of agents cannot be understood.")
	}
	var out strings.Builder
	for _, a := range wrapped.Agents {
		fmt.Fprintf(&out, "%s: %s. %s\n", a.ID, a.Name, a.Description)
	}
	if out.Len() == 0 {
		return result{text: "[there are none]"}
	}
	return result{text: out.String()}
}
