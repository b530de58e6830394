package agent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// mainPersona is the persona of an agent if a request names none.
const mainPersona = "main"

// NoModels, as the only entry of an agent's list of models, means that the agent calls no models.
const NoModels = "-"

// sessionForm is the format of the names of sessions in requests.
var sessionForm = regexp.MustCompile(`^[A-Za-z0-9._:-]{0,512}$`)

// DefaultWorkdir is the path of the workspace of an agent that specifies none.
const DefaultWorkdir = "/workspace"

// Defaults are the values of a run that neither its request nor its agent sets.
type Defaults struct {
	Limits caisson.AgentLimits // limits of the run; zero fields mean those of [caisson.DefaultAgentLimits]
	// Models are the models that the caller may use, in the order of the configuration. The default model of a run is the first
	// one that the agent can call. Models with a Problem cannot be called, and are only used in error messages.
	Models []caisson.GatewayModel
}

// Settings are the resolved settings of one run of an agent.
type Settings struct {
	Limits  caisson.AgentLimits // limits of the run
	Model   string              // alias of the model of the run; "" for an agent that calls no model
	API     string              // API with which Model is called; if Model supports all: the agent's first one, or else OpenAI's
	Models  []string            // aliases of the models that the run may use, with Model first
	Gateway caisson.GatewayUse  // rates of model calls, and features of model APIs, that the run may use
	Policy  caisson.Policy      // egress policy of the sandbox
	Env     map[string]string   // environment of the program, including the variables that every agent has
	Workdir string              // path of the workspace in the sandbox
	Command []string            // command of the agent's program, with all placeholders filled in except {prompt}
	// Interactive is the command of an interactive run, with all placeholders filled in.
	Interactive []string
	Persona     *caisson.Persona // the persona of the run; nil means the agent itself
}

// Resolve returns the settings of a run. A value of the request takes precedence over that of the agent, and a value of the
// agent over the default. The request of a caller with a token may only narrow limits: a wider one is Denied. The limits of an
// account's own agent are then capped at the defaults. It returns joined Invalid errors with the fields of the request.
func Resolve(a *caisson.Agent, req caisson.RunRequest, d Defaults, caller caisson.Caller) (*Settings, error) {
	s := &Settings{Policy: a.Policy, Workdir: cmp.Or(a.Workdir, DefaultWorkdir)}
	if req.Policy != nil {
		s.Policy = *req.Policy
	}
	c := &checker{}
	if !sessionForm.MatchString(req.Session) {
		c.addf("session", "%.80q is not a string of at most 512 letters, digits and . _ : -", req.Session)
	}
	c.env("env", req.Env)
	c.limits("limits", req.Limits)
	if req.Policy != nil {
		c.policy("policy", *req.Policy)
	}
	c.toolRule(a) // rejects agents, stored by earlier builds, whose lists of tools would not be enforced
	if s.Persona = c.persona(a, req.Persona); s.Persona != nil {
		c.personaTools("persona", a, s.Persona)
	}
	c.model(a, req.Model, d, s)
	c.gateway(a, req.Gateway, caller, s)
	if err := errors.Join(c.errs...); err != nil {
		return nil, err
	}
	limits, err := narrowLimits(defaultRunLimits(a, d, caller), req.Limits, caller.MayUseHost())
	if err != nil {
		return nil, err
	}
	s.Limits = limits
	persona := mainPersona
	if s.Persona != nil {
		persona = s.Persona.ID
	}
	facts := map[string]string{"model": s.Model, "session": req.Session, "workspace": s.Workdir, "persona": persona}
	if s.Command, err = Fill(a.Command, facts); err != nil {
		return nil, err
	}
	if s.Interactive, err = Fill(a.Interactive, facts); err != nil {
		return nil, err
	}
	s.Env = maps.Clone(a.Env)
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	maps.Copy(s.Env, req.Env)
	for name, v := range facts {
		s.Env[envPrefix+strings.ToUpper(name)] = v
	}
	s.Env[envPrefix+"MODEL_API"] = s.API
	return s, nil
}

// Check checks the limits and models that an earlier call of [Resolve] returned for a run of the same agent. It returns the
// models that the run may still use, or an error, as Resolve does, if the run's model, which is the first of models, or the
// limits are not allowed any more.
func Check(a *caisson.Agent, limits caisson.AgentLimits, models []string, d Defaults, caller caisson.Caller) ([]string, error) {
	c, s := &checker{}, &Settings{}
	c.toolRule(a) // rejects agents, stored by earlier builds, whose lists of tools would not be enforced
	if len(models) > 0 {
		c.model(a, models[0], d, s)
	}
	if err := errors.Join(c.errs...); err != nil {
		return nil, err
	}
	if _, err := narrowLimits(defaultRunLimits(a, d, caller), limits, caller.MayUseHost()); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(models), func(m string) bool { return !slices.Contains(s.Models, m) }), nil
}

// gateway sets s.Gateway: the maximum rates of a run's model calls, which are the lower ones of agent and request, and the
// features of model APIs that the run may use, which are those that the agent or the request allows. The request of a
// caller with a token may allow only features that the agent allows.
func (c *checker) gateway(a *caisson.Agent, asked *caisson.GatewayUse, caller caisson.Caller, s *Settings) {
	s.Gateway = a.Gateway
	if asked == nil {
		return
	}
	checkGatewayUse(c, "gateway", *asked)
	s.Gateway.Rate.Requests = lowerRate(a.Gateway.Rate.Requests, asked.Rate.Requests)
	s.Gateway.Rate.Tokens = lowerRate(a.Gateway.Rate.Tokens, asked.Rate.Tokens)
	s.Gateway.Record = a.Gateway.Record || asked.Record
	s.Gateway.Allow = slices.Clone(a.Gateway.Allow)
	for _, name := range asked.Allow {
		switch {
		case slices.Contains(s.Gateway.Allow, name):
		case !caller.MayUseHost():
			c.add(&caisson.Error{
				Kind: caisson.Denied, Field: "gateway.allow", Msg: fmt.Sprintf("%.40q is not in the agent's gateway.allow, and cannot be requested over a token", name),
			})
		default:
			s.Gateway.Allow = append(s.Gateway.Allow, name)
		}
	}
}

// lowerRate returns the lower one of two maximum rates of model calls. A rate of 0 means no limit.
func lowerRate(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// defaultRunLimits returns the limits of a run whose request sets none. They are also the widest limits that the
// request of a caller with a token can set.
func defaultRunLimits(a *caisson.Agent, d Defaults, caller caisson.Caller) caisson.AgentLimits {
	own := a.Limits
	if a.Account != "" && !caller.MayUseHost() {
		// The agent may have been stored when higher limits were allowed. An agent with wider limits for all accounts belongs in
		// the administrator's directory.
		own = capLimits(own, completeLimits(caisson.AgentLimits{}, d.Limits))
	}
	return completeLimits(own, d.Limits)
}

// persona returns the persona that a request names, or nil if the request names none or mainPersona.
func (c *checker) persona(a *caisson.Agent, id string) *caisson.Persona {
	if id == "" || id == mainPersona {
		return nil
	}
	names := []string{mainPersona}
	for i, p := range a.Personas {
		if p.ID == id {
			return &a.Personas[i]
		}
		names = append(names, p.ID)
	}
	c.addf("persona", "%s has no persona %.80q; it has %s", a.ID, id, strings.Join(names, ", "))
	return nil
}

// model sets the models of a run: those that its caller may use and its agent can call, in the order of the agent, or of the
// configuration if the agent lists none. If the request or the agent names a model that the agent cannot call, model adds an
// error and does not choose another model.
func (c *checker) model(a *caisson.Agent, asked string, d Defaults, s *Settings) {
	if slices.Equal(a.Models, []string{NoModels}) {
		if asked != "" {
			c.addf("model", "%s calls no models; leave it out", a.ID)
		}
		return
	}
	if asked == "" && s.Persona != nil {
		asked = s.Persona.Model
	}
	var models, misfits []caisson.GatewayModel
	for _, m := range candidateModels(a, d.Models) {
		if m.Problem != "" {
			continue
		}
		if a.SupportsAPI(m.API()) {
			models = append(models, m)
			s.Models = append(s.Models, m.Alias)
		} else {
			misfits = append(misfits, m)
		}
	}
	// It is an error if the agent cannot call a model that the request or the agent names. Other models that the agent cannot
	// call are skipped.
	named := func(m caisson.GatewayModel) bool { return m.Alias == asked || len(a.Models) > 0 }
	if i := slices.IndexFunc(misfits, named); i >= 0 || len(misfits) > 0 && len(models) == 0 && needsModel(a) {
		m := misfits[max(i, 0)]
		c.addf("model", "agent %q cannot use model %.80q (its API is %s): %s", a.ID, m.Alias, apiNames[m.API()], modelAdvice(a, d.Models))
		return
	}
	known := slices.IndexFunc(d.Models, func(m caisson.GatewayModel) bool { return m.Alias == asked })
	switch at := slices.Index(s.Models, asked); {
	case asked != "" && known < 0 && len(models) > 0:
		c.addf("model", "there is no model %.80q; %s may use %s", asked, a.ID, strings.Join(s.Models, ", "))
	case asked != "" && known >= 0 && d.Models[known].Problem != "":
		c.addf("model", "calls of %.80q would be refused: %s", asked, d.Models[known].Problem)
	case len(models) == 0 && len(a.Models) > 0:
		c.addf("model", "agent %q uses only the models that its file lists: %s", a.ID, listedProblem(a, d.Models))
	case len(models) == 0 && (asked != "" || needsModel(a)):
		c.addf("model", "there is no model that %s can use; store a key with caisson credential set %s, or configure a model: caisson model ls lists them", a.ID, keyNames(a))
	case len(models) == 0:
	case asked == "":
		s.setModel(a, models[0])
	case at < 0:
		c.addf("model", "%s may not use %.80q; it may use %s", a.ID, asked, strings.Join(s.Models, ", "))
	default:
		s.setModel(a, models[at])
		// The run's model is the first, because the gateway uses the first model of a grant for unknown names.
		s.Models = append([]string{asked}, slices.Delete(s.Models, at, at+1)...)
	}
}

// listedProblem returns the reason why the first of the models that an agent lists cannot be called.
func listedProblem(a *caisson.Agent, all []caisson.GatewayModel) string {
	alias := a.Models[0]
	if i := slices.IndexFunc(all, func(m caisson.GatewayModel) bool { return m.Alias == alias }); i >= 0 {
		return fmt.Sprintf("calls of %.80q would be refused: %s", alias, all[i].Problem)
	}
	return fmt.Sprintf("there is no model %.80q; correct models in the file, or configure it: caisson model ls lists the models", alias)
}

// candidateModels returns the models from which a run's model is chosen: those that the agent lists, in its order, or all if it
// lists none.
func candidateModels(a *caisson.Agent, all []caisson.GatewayModel) (list []caisson.GatewayModel) {
	if len(a.Models) == 0 {
		return all
	}
	for _, alias := range a.Models {
		if i := slices.IndexFunc(all, func(m caisson.GatewayModel) bool { return m.Alias == alias }); i >= 0 {
			list = append(list, all[i])
		}
	}
	return list
}

// setModel sets m as the model of the run, and the API with which the agent calls it.
func (s *Settings) setModel(a *caisson.Agent, m caisson.GatewayModel) {
	s.Model, s.API = m.Alias, m.API()
	if s.API == "" && len(a.APIs) > 0 {
		s.API = a.APIs[0]
	}
	s.API = cmp.Or(s.API, caisson.APIOpenAI)
}

// apiNames maps APIs of models to the names that messages use for them.
var apiNames = map[string]string{caisson.APIOpenAI: "OpenAI", caisson.APIAnthropic: "Anthropic", caisson.APIGemini: "Gemini"}

// keyNames returns, joined by " or ", the names of the credentials each of which is enough to call a built-in model from the
// agent.
func keyNames(a *caisson.Agent) string {
	var names []string
	for _, k := range []struct{ api, name string }{
		{caisson.APIAnthropic, "ANTHROPIC_API_KEY"}, {caisson.APIOpenAI, "OPENAI_API_KEY"}, {caisson.APIGemini, "GEMINI_API_KEY"},
	} {
		if a.SupportsAPI(k.api) {
			names = append(names, k.name)
		}
	}
	return strings.Join(names, " or ")
}

// maxNamed is the maximum number of models that an error message names.
const maxNamed = 10

// modelAdvice returns the part of an error message that says what to do about a model that the agent cannot use.
func modelAdvice(a *caisson.Agent, all []caisson.GatewayModel) string {
	var fit []string
	problem := ""
	for _, m := range all {
		switch {
		case !a.SupportsAPI(m.API()):
		case m.Problem == "" && len(fit) < maxNamed:
			fit = append(fit, m.Alias)
		case m.Problem != "" && problem == "":
			problem = fmt.Sprintf("; calls of %.80q would be refused: %s", m.Alias, m.Problem)
		}
	}
	if len(fit) > 0 {
		return "use one of " + strings.Join(fit, ", ")
	}
	if problem == "" {
		problem = ", and none is configured; caisson model ls lists the models"
	}
	return "it needs a model of the API " + strings.Join(apiNamesOfAgent(a), " or ") + problem
}

// apiNamesOfAgent returns the APIs of models that an agent supports, by the names that messages use for them.
func apiNamesOfAgent(a *caisson.Agent) (names []string) {
	for _, api := range []string{caisson.APIAnthropic, caisson.APIOpenAI, caisson.APIGemini} {
		if a.SupportsAPI(api) {
			names = append(names, apiNames[api])
		}
	}
	return names
}

// CheckModels returns an Invalid error with the reason if no run of the agent could call a model that it needs.
func CheckModels(a *caisson.Agent, models []caisson.GatewayModel) error {
	c := &checker{}
	c.model(a, "", Defaults{Models: models}, &Settings{})
	return errors.Join(c.errs...)
}

// needsModel reports whether an agent cannot be started without a model.
func needsModel(a *caisson.Agent) bool {
	used, _ := placeholders("command", a.Command)
	return a.Driver == caisson.DriverOpenClaw || a.Driver == caisson.DriverCodex || slices.Contains(used, "model")
}

// completeLimits returns the limits of an agent, with those of defaults and then those of [caisson.DefaultAgentLimits] for
// limits that are not set.
func completeLimits(own, defaults caisson.AgentLimits) caisson.AgentLimits {
	return mergeLimits(own, mergeLimits(defaults, caisson.DefaultAgentLimits()))
}

// mergeLimits returns a, with each limit that is not set in a taken from b.
func mergeLimits(a, b caisson.AgentLimits) caisson.AgentLimits {
	return caisson.AgentLimits{
		Time: cmp.Or(a.Time, b.Time), Memory: cmp.Or(a.Memory, b.Memory), CPUs: cmp.Or(a.CPUs, b.CPUs), Disk: cmp.Or(a.Disk, b.Disk),
		PIDs: cmp.Or(a.PIDs, b.PIDs), Output: cmp.Or(a.Output, b.Output), Cost: cmp.Or(a.Cost, b.Cost), Tokens: cmp.Or(a.Tokens, b.Tokens),
		Calls: cmp.Or(a.Calls, b.Calls), Runs: cmp.Or(a.Runs, b.Runs),
	}
}

// orZero returns the value that p points to, or the zero value if p is nil.
func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// capLimits returns l, with each limit capped at that of most. A limit that is not set in most (0, or nil for limits that may be
// 0) has no cap.
func capLimits(l, most caisson.AgentLimits) caisson.AgentLimits {
	return caisson.AgentLimits{
		Time: capSet(l.Time, most.Time), Memory: capSet(l.Memory, most.Memory), CPUs: capSet(l.CPUs, most.CPUs), Disk: capSet(l.Disk, most.Disk),
		PIDs: capSet(l.PIDs, most.PIDs), Output: capSet(l.Output, most.Output), Cost: capOptional(l.Cost, most.Cost), Tokens: capOptional(l.Tokens, most.Tokens),
		Calls: capOptional(l.Calls, most.Calls), Runs: capOptional(l.Runs, most.Runs),
	}
}

// capOptional returns the smaller of n and most, for limits of which 0 is a valid value; n itself if n or most is nil (not set).
func capOptional[T cmp.Ordered](n, most *T) *T {
	if n == nil || most == nil || *n <= *most {
		return n
	}
	return most
}

// capSet returns the smaller of n and most; a most of 0 means no limit.
func capSet[T cmp.Ordered](n, most T) T {
	var none T
	if most == none {
		return n
	}
	return min(n, most)
}

// narrowLimits returns the limits of a request, with those of most where the request sets none. It returns a Denied error if a
// limit is wider than that of most, unless local is true. A limit that is not set in most is unbounded, so any value is allowed.
func narrowLimits(most, asked caisson.AgentLimits, local bool) (caisson.AgentLimits, error) {
	var errs []error
	for _, f := range []struct {
		name  string
		wider bool
		show  string
	}{
		{"time", most.Time > 0 && asked.Time > most.Time, most.Time.String()},
		{"memory", most.Memory > 0 && asked.Memory > most.Memory, most.Memory.String()},
		{"cpus", most.CPUs > 0 && asked.CPUs > most.CPUs, fmt.Sprint(most.CPUs)},
		{"disk", most.Disk > 0 && asked.Disk > most.Disk, most.Disk.String()},
		{"pids", most.PIDs > 0 && asked.PIDs > most.PIDs, fmt.Sprint(most.PIDs)},
		{"output", most.Output > 0 && asked.Output > most.Output, most.Output.String()},
		{"cost", capOptional(asked.Cost, most.Cost) != asked.Cost, orZero(most.Cost).String()},
		{"tokens", capOptional(asked.Tokens, most.Tokens) != asked.Tokens, fmt.Sprint(orZero(most.Tokens))},
		{"calls", capOptional(asked.Calls, most.Calls) != asked.Calls, fmt.Sprint(orZero(most.Calls))},
		{"runs", capOptional(asked.Runs, most.Runs) != asked.Runs, fmt.Sprint(orZero(most.Runs))},
	} {
		if !local && f.wider {
			errs = append(errs, &caisson.Error{
				Kind: caisson.Denied, Field: "limits." + f.name, Msg: "is wider than " + f.show + ", the most that can be requested over a token",
			})
		}
	}
	return mergeLimits(asked, most), errors.Join(errs...)
}
