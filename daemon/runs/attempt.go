package runs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// An attempt is one try to execute a run, with its state in memory. Until the attempt's result is stored, no other code changes
// the stored run.
type attempt struct {
	runs     caisson.RunStore
	events   caisson.Publisher
	r        *caisson.Run     // the run, as it was last read from the store or written to it
	agent    *caisson.Agent   // the run's agent, with the fields that its recipe generates
	plan     *caisson.RunPlan // the run's plan, without the models that are no longer allowed
	log      *slog.Logger
	rec      *recorder         // stores the events of the attempt
	clock    clock             // durations of the run's phases
	box      box               // the sandbox of the attempt
	output   agentOutput       // what the agent has written so far
	result   caisson.RunResult // the result that is stored when the attempt ends
	starting bool              // the daemon is starting, and ends this attempt of an earlier daemon
}

// box describes the sandbox of an attempt, and what becomes of the sandbox afterwards.
type box struct {
	sandbox       *caisson.Sandbox   // record of the sandbox; nil until it exists
	volume        caisson.ID         // the volume of the run's session; "" for none
	repo          *caisson.RepoGrant // access to the run's repository; nil for none
	warm          bool               // the sandbox is a fork of the warm snapshot
	earlierPIDs   map[int]bool       // ids of the processes that were in a kept sandbox before the prompt; nil if not recorded
	isNew         bool               // the sandbox was created for this attempt, and so had no prompt before
	removable     bool               // the sandbox is removed when the attempt has ended
	undeliverable bool               // the sandbox is kept only because it contains changes that could not be delivered
	prompted      bool               // the agent has had a prompt in the sandbox, so a session can continue in it
}

// agentOutput is what an attempt records about the output of the agent, for its result and for the output limit.
type agentOutput struct {
	answer              strings.Builder // the text that the agent has written so far
	eventBytes          int64           // size of the agent's events in bytes, as counted for the output limit
	maybeProviderFailed bool            // the run's failure may be caused by a failure of a model provider
}

// status adds a status event to the events of the run.
func (x *attempt) status(phase, label string) {
	x.rec.add(caisson.RunEvent{Type: caisson.EventStatus, Phase: phase, Label: label})
}

// warn logs and records a problem that does not end the run.
func (x *attempt) warn(ctx context.Context, what string, err error) {
	x.log.WarnContext(ctx, what, "err", err)
	x.status("warning", what)
	x.events.Publish(ctx, x.r.Account, "run.warning", string(x.r.ID), map[string]string{"warning": what, "trace": x.r.Trace})
}

// update changes the run in the store, and sets x.r to the changed run.
func (x *attempt) update(ctx context.Context, change func(*caisson.Run)) (*caisson.Run, error) {
	r, err := x.runs.Update(ctx, caisson.In(x.r.Account), x.r.ID, func(r *caisson.Run) error {
		change(r)
		return nil
	})
	if err == nil {
		x.r = r
	}
	return r, err
}

// addVersions adds the versions of programs and images that the run uses to the result. Empty versions are omitted.
func (x *attempt) addVersions(more map[string]string) {
	for k, v := range more {
		if v != "" {
			x.result.Versions[k] = v
		}
	}
}

// assignment returns the assignment of the attempt's sandbox: the identity of the run, and the models that it is granted.
func (x *attempt) assignment() *caisson.Assignment {
	a := &caisson.Assignment{
		Run: x.r.ID, Attempt: x.r.Attempt, Session: x.r.Session, Agent: x.r.Agent, User: x.r.Request.User,
		Lineage: x.r.Lineage, Trace: x.r.Trace, Tools: len(x.agent.SubAgents) > 0 && x.r.Limits.StartableRuns() > 0 && len(x.r.Lineage) < maxDepth,
	}
	if len(x.plan.Models) > 0 {
		a.Models = &caisson.ModelGrant{
			Models: x.plan.Models, Rate: x.plan.Gateway.Rate, Allow: x.plan.Gateway.Allow, Record: x.plan.Gateway.Record,
		}
	}
	return a
}

// labels returns the labels of the attempt's sandbox, by which reconcile finds the sandbox.
func (x *attempt) labels() map[string]string {
	l := map[string]string{labelRun: string(x.r.ID), labelAgent: x.r.Agent}
	if x.r.Session != "" {
		l[labelSession] = string(x.r.Session)
	}
	maps.Copy(l, x.r.Request.Labels)
	return l
}

// asOwner returns a context with the rights of the host if the agent belongs to the host, as built-in agents and those in files
// on the host do, and the run uses the agent's own policy and image. Otherwise it returns ctx.
func (x *attempt) asOwner(ctx context.Context) context.Context {
	if x.r.Request.Policy == nil && x.r.Request.Image == "" && x.agent.Account == "" {
		return caisson.WithCaller(ctx, caisson.HostCaller(x.r.Account, "run an agent of the host's"))
	}
	return ctx
}

// mounted reports whether the run's directory itself, or a layer over it, is mounted in the attempt's sandbox.
func (x *attempt) mounted() bool {
	return x.r.Request.Kind == caisson.WorkspaceOverlay || x.r.Request.Kind == caisson.WorkspaceDirect
}

// volumeRef returns the name or id of the volume for a new sandbox of the attempt: the volume of the run or, if the run has no
// workspace of another kind, the volume of its session; "" for none.
func (x *attempt) volumeRef() string {
	switch req := &x.r.Request; {
	case req.Kind == caisson.WorkspaceVolume:
		return req.Source
	case x.r.HasWorkspace || req.Repo != nil:
		return ""
	}
	return string(x.box.volume)
}

// env returns the environment of the agent's program. The API keys in it are not valid anywhere: the gateway identifies the
// sandbox by its wire.
func (x *attempt) env(deadline time.Time) map[string]string {
	env := map[string]string{
		"OPENAI_BASE_URL": gatewayURL + "/v1", "OPENAI_API_KEY": "caisson", "ANTHROPIC_BASE_URL": gatewayURL, "ANTHROPIC_API_KEY": "caisson",
		"CAISSON_RUN": string(x.r.ID), "CAISSON_AGENT": x.r.Agent, "CAISSON_DEADLINE": deadline.UTC().Format(time.RFC3339),
		"TRACEPARENT": "00-" + x.r.Trace + "-" + x.r.Trace[:16] + "-01",
	}
	if x.assignment().Tools {
		env["CAISSON_TOOLS_URL"] = toolsURL
	}
	if x.box.repo != nil {
		env["CAISSON_REPO_URL"], env["CAISSON_REPO_BRANCH"], env["CAISSON_REPO_BASE"] = x.box.repo.URL, x.box.repo.Branch, x.box.repo.Start
	}
	// These variables contain the tools that the agent allows and denies, for programs that cannot be configured in another way.
	for name, tools := range map[string][]string{"CAISSON_TOOLS_ALLOW": x.agent.Tools.Allow, "CAISSON_TOOLS_DENY": x.agent.Tools.Deny} {
		if len(tools) > 0 {
			env[name] = strings.Join(tools, ",")
		}
	}
	maps.Copy(env, x.plan.Env)
	return env
}

// sandboxID returns the id of the attempt's sandbox; "" if there is none.
func (x *attempt) sandboxID() caisson.ID {
	if x.box.sandbox == nil {
		return ""
	}
	return x.box.sandbox.ID
}

// A clock measures how long the phases of a run take.
type clock struct {
	mu     sync.Mutex
	began  time.Time       // start of the current phase; guarded by mu
	phases []caisson.Phase // phases so far; guarded by mu, because package sandboxes adds some from other goroutines
}

// start begins a phase. The time since the end of the previous phase is not counted.
func (x *clock) start() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.began = time.Now()
}

// phase ends the current phase, gives it a name, and begins the next phase.
func (x *clock) phase(name string) {
	t := time.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.add(name, t.Sub(x.began))
	x.began = t
}

// addPart records d, a part of the current phase, as a phase of its own.
func (x *clock) addPart(name string, d time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.add(name, d)
	x.began = x.began.Add(d)
}

// add adds the time d to the phase of this name, which it creates if there is none. The caller must hold mu.
func (x *clock) add(name string, d time.Duration) {
	d = max(0, d)
	for i := range x.phases {
		if x.phases[i].Name == name {
			x.phases[i].Time += caisson.Duration(d)
			return
		}
	}
	x.phases = append(x.phases, caisson.Phase{Name: name, Time: caisson.Duration(d)})
}

// split returns the phases of the run. model, the time of model calls, is taken out of the phase "agent" and returned as the
// phase "model".
func (x *clock) split(model time.Duration) []caisson.Phase {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := slices.Clone(x.phases)
	for i, p := range list {
		list[i].Time = caisson.Duration(time.Duration(p.Time).Round(time.Microsecond))
	}
	i := slices.IndexFunc(list, func(p caisson.Phase) bool { return p.Name == "agent" })
	if i < 0 || model == 0 {
		return list
	}
	spent := min(caisson.Duration(model), list[i].Time)
	list[i].Time -= spent
	return slices.Insert(list, i, caisson.Phase{Name: "model", Time: spent})
}

// A failure is the error of a failed attempt, with the code and message of its result.
type failure struct {
	code      string // error code of the result
	msg       string // message of the result
	err       error  // cause of the failure, for the log
	fromAgent bool   // the agent has reported the failure, and may not know its actual cause
}

func (f *failure) Error() string {
	if f.err != nil {
		return f.msg + ": " + f.err.Error()
	}
	return f.msg
}

func (f *failure) Unwrap() error { return f.err }

// isFailure reports whether err already contains the code and message of a result.
func isFailure(err error) bool {
	_, ok := errors.AsType[*failure](err)
	return ok
}

// failf returns a failure with a code and a message.
func failf(code, format string, args ...any) error {
	return &failure{code: code, msg: fmt.Sprintf(format, args...)}
}

// errDeadline is the cause of the cancellation when an attempt has used up its time.
var errDeadline = errors.New("the run's time is over")
