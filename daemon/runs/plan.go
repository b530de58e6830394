package runs

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
	"github.com/caisson-dev/caisson/internal/namemask"
)

// planner resolves requests into plans, which are stored with their runs, and checks a plan again before it is executed.
type planner struct {
	builder *builder       // builds the templates of agents
	models  caisson.Models // models that can be granted
	relay   caisson.Relay  // checks requests for repositories; nil if the daemon has no relay
	mounts  bool           // directories can be mounted in sandboxes
	budget  caisson.Limits // default budget of a run whose agent has no cost limit
}

// plan resolves a request into a run that is not stored yet.
func (p *planner) plan(ctx context.Context, caller caisson.Caller, req caisson.RunRequest) (*caisson.Run, error) {
	if caller.Account == "" {
		return nil, caisson.Errorf(caisson.Unauthed, "the request has no account")
	}
	a, err := p.builder.complete(ctx, req.Agent)
	if err != nil {
		return nil, err
	}
	models, err := p.models.ListModels(ctx)
	if err != nil {
		return nil, err
	}
	set, err := agent.Resolve(a, req, p.defaults(models), caller)
	if err != nil {
		return nil, err
	}
	plan, err := newPlan(a, set, req.Interactive)
	if err != nil {
		return nil, err
	}
	if err := checkPrompt(&req, a); err != nil {
		return nil, err
	}
	if req.Interactive && req.Limits.Time == 0 && caller.MayUseHost() {
		set.Limits.Time = interactiveTime
	}
	if err := p.planWorkspace(&req, a); err != nil {
		return nil, err
	}
	if err := p.checkRepo(ctx, caller, &req); err != nil {
		return nil, err
	}
	for k := range req.Labels {
		if strings.HasPrefix(k, labelPrefix) {
			return nil, caisson.Invalidf("labels", "%.80q begins with %s, as only Caisson's own do", k, labelPrefix)
		}
	}
	return &caisson.Run{
		ID: caisson.NewID(caisson.RunPrefix), Account: caller.Account, Agent: a.ID, Request: req, State: caisson.RunQueued,
		Attempt: 1, Trace: newTrace(), Limits: set.Limits, Model: set.Model, Local: caller.Local, CreatedAt: now(), Plan: plan,
	}, nil
}

// planVersion is the version of the plans that this build makes and executes.
const planVersion = 1

// newPlan returns the plan of a run of the agent a with the settings s. If interactive is true, the command is that of the
// agent's own interface.
func newPlan(a *caisson.Agent, s *agent.Settings, interactive bool) (*caisson.RunPlan, error) {
	key, err := planKey(a)
	p := &caisson.RunPlan{Version: planVersion, Agent: key, Models: s.Models, Gateway: s.Gateway, Policy: s.Policy, Env: s.Env, Command: s.Command}
	if interactive {
		p.Command = s.Interactive
	}
	return p, err
}

// planKey returns a hash of the fields of an agent that its plans depend on.
func planKey(a *caisson.Agent) (string, error) {
	return hashParts(a.Account, a.Driver, a.Workdir, a.Command, a.Interactive, a.Env, a.Policy, a.Limits, a.Models, a.APIs, a.Gateway, a.Tools, a.Personas)
}

// check returns stored, the plan to store with a run, and now, the plan that the run's attempt executes, which omits models
// that have been removed. It also checks the run's limits; the policy is checked when the sandbox gets it, and the budgets when
// a call is made. If the run has no plan, or a plan of another planVersion, or if the agent's entry has changed since, check
// makes a new plan within the run's limits.
func (p *planner) check(ctx context.Context, r *caisson.Run, a *caisson.Agent) (stored, now *caisson.RunPlan, err error) {
	models, err := p.models.ListModels(ctx)
	if err != nil {
		return nil, nil, err
	}
	key, err := planKey(a)
	if err != nil {
		return nil, nil, err
	}
	caller, d := caisson.Caller{Account: r.Account, Local: r.Local}, p.defaults(models)
	if r.Plan == nil || r.Plan.Version != planVersion || r.Plan.Agent != key {
		asked := r.Request
		asked.Limits, asked.Model = r.Limits, r.Model
		set, err := agent.Resolve(a, asked, d, caller)
		if err != nil {
			return nil, nil, err
		}
		plan, err := newPlan(a, set, r.Request.Interactive)
		return plan, plan, err
	}
	plan := *r.Plan
	plan.Models, err = agent.Check(a, r.Limits, plan.Models, d, caller)
	return r.Plan, &plan, err
}

// defaults returns the settings that apply where neither the run nor its agent has its own.
func (p *planner) defaults(models []caisson.GatewayModel) agent.Defaults {
	return agent.Defaults{Limits: caisson.DefaultAgentLimits().WithBudget(p.budget), Models: withoutWarmModel(models)}
}

// newTrace returns a new random trace id in the format of the W3C Trace Context.
func newTrace() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// planWorkspace sets Kind and Sync of a request with a directory: how the directory becomes the workspace, and how changes get
// back to the directory. Kind and Sync of other requests are only validated.
func (p *planner) planWorkspace(req *caisson.RunRequest, a *caisson.Agent) error {
	if req.Kind == caisson.WorkspaceVolume {
		return checkVolume(req)
	}
	if req.Workspace == nil {
		req.Hidden, req.HiddenCount = nil, 0
	} else if err := checkHidden(req); err != nil {
		return err
	}
	if req.Source == "" {
		if req.Kind != "" || req.Sync != "" || len(req.Show) > 0 && req.Workspace == nil {
			return caisson.Invalidf("kind", "applies to a directory, and none is given; give one with -C")
		}
		return nil
	}
	// The files in a mounted workspace belong to the guest's root, so an agent that runs as another user could not change them.
	mountable := p.mounts && (a.User == "" || a.User == "root" || a.User == "0" || a.User == "0:0")
	if req.Sync == caisson.SyncUnsafe {
		req.Kind = cmp.Or(req.Kind, caisson.WorkspaceDirect)
	}
	switch {
	case req.Kind == "" && mountable:
		req.Kind = caisson.WorkspaceOverlay
	case req.Kind == "":
		req.Kind = caisson.WorkspaceCopy
	case req.Kind != caisson.WorkspaceCopy && !mountable:
		return caisson.Invalidf("kind", "agent %s works as user %q, who cannot write in a mounted directory; use kind copy", a.ID, a.User)
	}
	switch {
	case req.Kind == caisson.WorkspaceDirect:
		req.Sync = cmp.Or(req.Sync, caisson.SyncUnsafe)
		if req.Sync != caisson.SyncUnsafe {
			return caisson.Invalidf("sync", "a direct workspace is the directory itself, in which nothing is reviewed; leave sync out, or use kind overlay")
		}
	case req.Sync == caisson.SyncUnsafe:
		return caisson.Invalidf("sync", "yolo-unsafe is valid only with kind direct")
	case req.Kind == caisson.WorkspaceCopy && req.Sync != "":
		return caisson.Invalidf("kind", "changes in a copy are not applied to the directory; omit sync")
	case req.Kind == caisson.WorkspaceOverlay:
		req.Sync = cmp.Or(req.Sync, caisson.SyncSecure)
	}
	return nil
}

// checkHidden validates the list of paths that a client has left out of its archive.
func checkHidden(req *caisson.RunRequest) error {
	if len(req.Hidden) > namemask.MaxListed {
		return caisson.Invalidf("hidden", "has more than %d paths; list the first ones, and say in hiddenCount how many there are", namemask.MaxListed)
	}
	if req.HiddenCount < 0 || req.HiddenCount > maxHidden {
		return caisson.Invalidf("hiddenCount", "must be from 0 to %d", maxHidden)
	}
	for _, p := range req.Hidden {
		if p == "" || len(p) > unix.PathMax || !utf8.ValidString(p) {
			return caisson.Invalidf("hidden", "%.40q is not a path", p)
		}
	}
	return nil
}

// maxHidden is the maximum number of files that a client can report as left out.
const maxHidden = 5_000_000

// checkRepo returns an error if a run cannot have the repository that its request names. It does not change the request.
func (p *planner) checkRepo(ctx context.Context, caller caisson.Caller, req *caisson.RunRequest) error {
	switch {
	case req.Repo == nil:
		return nil
	case p.relay == nil:
		return caisson.Errorf(caisson.Invalid, "this daemon has no relay for repositories")
	case req.Source != "" || req.Directory != nil || req.Workspace != nil:
		return caisson.Invalidf("repo", "a run works on a directory or on a repository; omit one of them")
	}
	return p.relay.CheckRepo(ctx, caller.Account, *req.Repo)
}
