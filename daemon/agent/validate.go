package agent

import (
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// idForm, envForm and userForm are the formats of ids of agents and personas, of names of environment variables, and of users
// in a sandbox (USER or USER:GROUP).
var (
	idForm   = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	envForm  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	userForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?$`)
	// objectIDForm is the format of ids of sandboxes and other objects, which the id of an agent must not have.
	objectIDForm = regexp.MustCompile(`^[a-z]{2}-[a-z2-7]{16}$`)
)

// Limits on the fields of an agent.
const (
	maxText     = 1 << 10  // size of the name, the description and the version, each in bytes
	maxWord     = 256      // size of the name of a model, tool or program, in bytes
	maxWords    = 256      // maximum number of names of models, tools or programs in one list
	maxSteps    = 64       // maximum number of steps of the setup
	maxFiles    = 64       // maximum number of files in the entry of an agent, or in one step of its setup
	maxPersonas = 32       // maximum number of personas of an agent
	maxPool     = 64       // maximum number of sandboxes in the pool of an agent
	maxStrings  = 1 << 20  // total size of all arguments, or of all environment variables, in bytes
	maxPath     = 4096     // size of a path in bytes
	minMemory   = 64 << 20 // smallest limit of memory in bytes
	minDisk     = 1 << 20  // smallest limit of disk space in bytes
	maxCPUs     = 1024     // largest limit of CPUs
	maxPIDs     = 1 << 20  // largest limit of processes
)

// envPrefix is the prefix of the names of environment variables that Caisson sets for every agent.
const envPrefix = "CAISSON_"

// lineFormats are the names of the JSON line formats that driver jsonl implements.
var lineFormats = []string{"caisson", "claude", "codex", "opencode"}

// modelAPIs are the valid model APIs of agents.
var modelAPIs = []string{caisson.APIOpenAI, caisson.APIAnthropic, caisson.APIGemini}

// names checks the id, the name, the description and the version of the agent.
func (c *checker) names(a *caisson.Agent) {
	switch {
	case a.ID == "":
		c.addf("id", "is missing; name the agent with a-z, 0-9 and -")
	case !idForm.MatchString(a.ID):
		c.addf("id", "%.70q is not 1 to 63 of a-z, 0-9 and -, beginning with a letter", a.ID)
	case objectIDForm.MatchString(a.ID):
		c.addf("id", "%q looks like the id of an object; choose another", a.ID)
	}
	if a.Name == "" {
		c.addf("name", "is missing; set the agent's display name")
	}
	c.text("name", a.Name)
	c.text("description", a.Description)
	c.text("version", a.Version)
}

// sandbox checks the image, its setup and the environment of the agent's program.
func (c *checker) sandbox(a *caisson.Agent) {
	switch {
	case a.Template != "" && (a.Image != "" || len(a.Setup) > 0):
		c.addf("template", "excludes image and setup; set one of them")
	case a.Template == "" && a.Image == "":
		c.addf("image", "is missing; write host or an OCI reference, or name a template")
	}
	c.word("template", a.Template)
	c.word("image", a.Image)
	if len(a.Setup) > maxSteps {
		c.addf("setup", "more than %d steps", maxSteps)
	}
	for i, s := range a.Setup {
		at := fmt.Sprintf("setup[%d]", i)
		if len(s.Run) == 0 {
			c.addf(at+".run", "name the program to run")
		}
		c.command(at+".run", s.Run)
		if s.Timeout < 0 {
			c.addf(at+".timeout", "is negative")
		}
		c.files(at+".files", s.Files)
	}
	c.policy("buildPolicy", a.BuildPolicy)
	c.policy("policy", a.Policy)
	c.env("env", a.Env)
	c.path("workdir", a.Workdir)
	if strings.ContainsAny(a.Workdir, "{}") {
		c.addf("workdir", "contains a brace, which commands could interpret as a placeholder")
	}
	if a.User != "" && !userForm.MatchString(a.User) {
		c.addf("user", "%.70q is not a user: write a name, a uid or uid:gid", a.User)
	}
	c.files("files", a.Files)
}

// driver checks the driver and the commands of the agent.
func (c *checker) driver(a *caisson.Agent) {
	drivers := []string{caisson.DriverExec, caisson.DriverJSONL, caisson.DriverACP, caisson.DriverCodex, caisson.DriverOpenClaw}
	c.oneOf("driver", a.Driver, drivers...)
	if len(a.Command) == 0 && a.Driver != caisson.DriverOpenClaw && slices.Contains(drivers, a.Driver) {
		c.addf("command", "is missing; driver %s needs a command to start", a.Driver)
	}
	c.command("command", a.Command)
	c.command("service", a.Service)
	used, err := placeholders("command", a.Command)
	c.add(err)
	if words, err := placeholders("service", a.Service); err != nil {
		c.add(err)
	} else if len(words) > 0 {
		c.addf("service", "{%s} is not known when the service starts; only command may have placeholders", words[0])
	}
	c.command("interactive", a.Interactive)
	if words, err := placeholders("interactive", a.Interactive); err != nil {
		c.add(err)
	} else if slices.Contains(words, "prompt") {
		c.addf("interactive", "has no prompt; leave {prompt} out")
	}
	c.path("serviceDir", a.ServiceDir)
	if a.ServiceDir != "" && len(a.Service) == 0 && a.Driver != caisson.DriverOpenClaw {
		c.addf("serviceDir", "there is no service that could run there")
	}
	c.prompt(a, slices.Contains(used, "prompt"))
	c.events(a)
	if a.Ready != "" {
		c.ready(a.Ready)
	}
}

// prompt checks how the prompt is passed to the agent's program. placed means that the command contains {prompt}.
func (c *checker) prompt(a *caisson.Agent, placed bool) {
	if a.Prompt != "" {
		c.oneOf("prompt", a.Prompt, caisson.PromptArgument, caisson.PromptStdin, caisson.PromptFile)
	}
	switch takes := a.Driver == caisson.DriverExec || a.Driver == caisson.DriverJSONL; {
	case !takes && a.Prompt != "":
		c.addf("prompt", "driver %s passes the prompt itself; leave it out", a.Driver)
	case !takes && placed:
		c.addf("command", "driver %s passes the prompt itself; leave {prompt} out", a.Driver)
	case a.Prompt == caisson.PromptStdin && placed:
		c.addf("command", "{prompt} cannot be used if the prompt is passed on standard input; leave one of them out")
	case a.Prompt == caisson.PromptFile && !placed:
		c.addf("command", "has no {prompt}, which stands for the file's path")
	}
}

// The program of the coder, which is task.ProgramPath of package guest/task, and its first argument, which selects what
// the program does. With the argument code, it reads which tools are allowed and denied from its environment, unless a flag
// overrides that. With another argument it starts other programs.
const (
	builtInProgram = "/.caisson/agent" // path of the program in a sandbox
	builtInRole    = "code"            // first argument of the program
)

// toolRule adds an error if the agent's lists of allowed and denied tools would not be enforced.
func (c *checker) toolRule(a *caisson.Agent) {
	rules := map[string][]string{"allow": a.Tools.Allow, "deny": a.Tools.Deny}
	switch starts := a.Driver == caisson.DriverExec || a.Driver == caisson.DriverJSONL; {
	case !starts || len(a.Tools.Allow)+len(a.Tools.Deny) == 0:
	case len(a.Command) < 2 || a.Command[0] != builtInProgram || a.Command[1] != builtInRole:
		c.addf("tools", "cannot be enforced for a program that driver %s starts, because the program chooses its tools itself; "+
			"leave it out and limit the tools in the program's own configuration (files, command)", a.Driver)
	default:
		for _, arg := range a.Command[2:] {
			flag, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
			if strings.HasPrefix(arg, "-") && len(rules[flag]) > 0 {
				c.addf("tools", "has no effect with %.80q in command, which replaces tools.%s; leave one of them out", arg, flag)
			}
		}
	}
}

// personaTools adds an error if a persona's list of denied tools would not be enforced.
func (c *checker) personaTools(field string, a *caisson.Agent, p *caisson.Persona) {
	if len(p.Deny) > 0 && a.Driver != caisson.DriverOpenClaw {
		c.addf(field, "cannot be enforced: only driver openclaw limits the tools of individual personas, driver %s does not; "+
			"leave out deny of %q", a.Driver, p.ID)
	}
}

// ready checks the URL of the readiness probe, which must be on the sandbox's loopback interface.
func (c *checker) ready(s string) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" || u.User != nil || u.Port() == "" {
		c.addf("ready", "%.100q is not http://127.0.0.1:PORT/PATH", s)
		return
	}
	if addr, err := netip.ParseAddr(u.Hostname()); u.Hostname() != "localhost" && (err != nil || !addr.IsLoopback()) {
		c.addf("ready", "%.100q is not in the sandbox; use 127.0.0.1", s)
	}
}

// capabilities checks models, APIs, tools, skills, sub-agents and personas.
func (c *checker) capabilities(a *caisson.Agent) {
	c.words("models", a.Models)
	if len(a.APIs) > len(modelAPIs) {
		c.addf("apis", "more than %d", len(modelAPIs))
	}
	for i, name := range a.APIs[:min(len(a.APIs), len(modelAPIs))] {
		c.oneOf(fmt.Sprintf("apis[%d]", i), name, modelAPIs...)
		if a.Driver == caisson.DriverOpenClaw && name != caisson.APIOpenAI {
			c.addf(fmt.Sprintf("apis[%d]", i), "driver openclaw supports %s only", caisson.APIOpenAI)
		}
	}
	checkGatewayUse(c, "gateway", a.Gateway)
	c.words("tools.allow", a.Tools.Allow)
	c.words("tools.deny", a.Tools.Deny)
	c.toolRule(a)
	c.words("background", a.Background)
	if len(a.Skills) > maxWords {
		c.addf("skills", "more than %d", maxWords)
	}
	for i, s := range a.Skills {
		c.path(fmt.Sprintf("skills[%d]", i), s)
	}
	for i, s := range a.SubAgents {
		if s != "*" && !idForm.MatchString(s) {
			c.addf(fmt.Sprintf("subAgents[%d]", i), "%.70q is not the id of an agent, or * for all", s)
		}
	}
	if len(a.Personas) > maxPersonas {
		c.addf("personas", "more than %d", maxPersonas)
	}
	seen := map[string]bool{}
	for i, p := range a.Personas {
		at := fmt.Sprintf("personas[%d]", i)
		switch {
		case !idForm.MatchString(p.ID):
			c.addf(at+".id", "%.70q is not 1 to 63 of a-z, 0-9 and -, beginning with a letter", p.ID)
		case p.ID == mainPersona:
			c.addf(at+".id", "main is reserved for the agent without a persona")
		case seen[p.ID]:
			c.addf(at+".id", "%q occurs twice", p.ID)
		}
		seen[p.ID] = true
		c.word(at+".model", p.Model)
		if p.Model != "" && len(a.Models) > 0 && !slices.Contains(a.Models, p.Model) {
			c.addf(at+".model", "%.80q is not among the agent's models", p.Model)
		}
		c.words(at+".deny", p.Deny)
		c.personaTools(at+".deny", a, &p)
		if len(p.Instructions) > 64<<10 || !utf8.ValidString(p.Instructions) {
			c.addf(at+".instructions", "is not text of at most 64KiB")
		}
	}
}

// checkGatewayUse checks the maximum rates of model calls and the features of model APIs in u. at is the path of u, for errors.
func checkGatewayUse(c *checker, at string, u caisson.GatewayUse) {
	if u.Rate.Requests < 0 || u.Rate.Tokens < 0 {
		c.addf(at+".rate", "is negative")
	}
	if len(u.Allow) > len(caisson.GrantNames) {
		c.addf(at+".allow", "more than %d", len(caisson.GrantNames))
		return
	}
	for i, name := range u.Allow {
		c.oneOf(fmt.Sprintf("%s.allow[%d]", at, i), name, caisson.GrantNames...)
	}
}

// limits checks the limits l. Limits that are 0 or nil are valid. at is the path of the field with the limits, for errors.
func (c *checker) limits(at string, l caisson.AgentLimits) {
	switch {
	case l.CPUs < 0 || l.CPUs > maxCPUs || l.CPUs > 0 && l.CPUs < 0.01 || math.IsNaN(l.CPUs):
		c.addf(at+".cpus", "%v is not between 0.01 and %d", l.CPUs, maxCPUs)
	case l.Memory < 0 || l.Memory > 0 && l.Memory < minMemory:
		c.addf(at+".memory", "%s is too little; at least %s is needed", l.Memory, caisson.Size(minMemory))
	case l.Disk < 0 || l.Disk > 0 && l.Disk < minDisk:
		c.addf(at+".disk", "%s is too little; at least %s is needed", l.Disk, caisson.Size(minDisk))
	case l.PIDs < 0 || l.PIDs > maxPIDs || l.PIDs > 0 && l.PIDs < 4:
		c.addf(at+".pids", "%d is not between 4 and %d", l.PIDs, maxPIDs)
	}
	for _, f := range []struct {
		name string
		n    int64
	}{
		{"time", int64(l.Time)}, {"output", int64(l.Output)}, {"cost", int64(orZero(l.Cost))},
		{"tokens", orZero(l.Tokens)}, {"calls", orZero(l.Calls)}, {"runs", orZero(l.Runs)},
	} {
		if f.n < 0 {
			c.addf(at+"."+f.name, "is negative")
		}
	}
}

// add adds an error, unless it is nil.
func (c *checker) add(err error) {
	if err != nil {
		c.errs = append(c.errs, err)
	}
}

// oneOf adds an error unless value is one of values.
func (c *checker) oneOf(field, value string, values ...string) {
	switch {
	case slices.Contains(values, value):
	case value == "":
		c.addf(field, "is missing; write one of %s", strings.Join(values, ", "))
	default:
		c.addf(field, "%.40q is not one of %s", value, strings.Join(values, ", "))
	}
}

// text checks that a text for people is one line of at most maxText bytes without control characters.
func (c *checker) text(field, s string) {
	if len(s) > maxText || strings.ContainsAny(s, "\n\r") || safetext.Escape(s) != s {
		c.addf(field, "is not one line of at most %d bytes without control characters", maxText)
	}
}

// word checks that an identifier, such as the name of a model, is printable, without spaces and at most maxWord bytes long.
// Whether the named object exists is checked elsewhere.
func (c *checker) word(field, s string) {
	if len(s) > maxWord || strings.ContainsAny(s, " \t\n\r\x00") || safetext.Escape(s) != s {
		c.addf(field, "%.80q is not at most %d printable characters without spaces", s, maxWord)
	}
}

// words checks a list of at most maxWords identifiers of the form that word requires. None may be empty or occur twice.
func (c *checker) words(field string, list []string) {
	if len(list) > maxWords {
		c.addf(field, "more than %d", maxWords)
		return
	}
	for i, s := range list {
		at := fmt.Sprintf("%s[%d]", field, i)
		c.word(at, s)
		if s == "" {
			c.addf(at, "is empty")
		} else if slices.Contains(list[:i], s) {
			c.addf(at, "%.80q occurs twice", s)
		}
	}
}

// path checks an absolute path, which may be empty.
func (c *checker) path(field, p string) {
	if p != "" && (!path.IsAbs(p) || strings.ContainsRune(p, 0) || len(p) > maxPath) {
		c.addf(field, "%.100q is not an absolute path", p)
	}
}

// command checks a program and its arguments. It does not check placeholders.
func (c *checker) command(field string, command []string) {
	n := 0
	for i, arg := range command {
		n += len(arg) + 1
		if strings.ContainsRune(arg, 0) {
			c.addf(fmt.Sprintf("%s[%d]", field, i), "contains a NUL byte")
		}
	}
	if len(command) > 0 && command[0] == "" {
		c.addf(field+"[0]", "is empty; name the program")
	}
	if n > maxStrings {
		c.addf(field, "more than 1MiB of arguments; pass them in a file")
	}
}

// env checks the names, values and total size of environment variables.
func (c *checker) env(field string, env map[string]string) {
	n := 0
	for k, v := range sorted(env) {
		n += len(k) + len(v) + 2
		switch {
		case !envForm.MatchString(k):
			c.addf(field, "%.70q is not the name of a variable", k)
		case strings.HasPrefix(k, envPrefix):
			c.addf(field+"."+k, "names that begin with %s are set by Caisson; choose another", envPrefix)
		case strings.ContainsRune(v, 0):
			c.addf(field+"."+k, "the value contains a NUL byte")
		}
	}
	if n > maxStrings {
		c.addf(field, "more than 1MiB of environment")
	}
}

// files checks the files that are to be written in a sandbox.
func (c *checker) files(field string, files []caisson.SeedFile) {
	if len(files) > maxFiles {
		c.addf(field, "more than %d", maxFiles)
	}
	seen := map[string]bool{}
	for i, f := range files {
		at := fmt.Sprintf("%s[%d]", field, i)
		p := path.Clean(f.Path)
		switch {
		case f.Path == "" || p == "/" || strings.HasSuffix(f.Path, "/"):
			c.addf(at+".path", "%.100q is not the path of a file", f.Path)
		case p == "/proc" || p == "/sys" || p == "/dev" || p == "/.caisson",
			strings.HasPrefix(p, "/proc/"), strings.HasPrefix(p, "/sys/"), strings.HasPrefix(p, "/dev/"), strings.HasPrefix(p, "/.caisson/"):
			c.addf(at+".path", "%.100q cannot be written to", f.Path)
		case seen[p]:
			c.addf(at+".path", "%.100q occurs twice", f.Path)
		}
		seen[p] = true
		c.path(at+".path", f.Path)
		if f.Mode&^0o777 != 0 {
			c.addf(at+".mode", "%#o is not a mode of read, write and execute bits, such as 0644", f.Mode)
		}
		if len(f.Data) > MaxFile {
			c.addf(at+".data", "more than %s", caisson.Size(MaxFile))
		}
	}
}

// policy checks the form of rules only. Whether their hosts and presets exist is checked when the policy is compiled.
func (c *checker) policy(field string, p caisson.Policy) {
	if len(p.Rules) > maxWords {
		c.addf(field+".rules", "more than %d", maxWords)
	}
	for i, r := range p.Rules {
		at := fmt.Sprintf("%s.rules[%d]", field, i)
		c.oneOf(at+".action", string(r.Action), string(caisson.Allow), string(caisson.Deny))
		if (r.Host == "") == (r.Preset == "") {
			c.addf(at, "must have either a host or a preset")
		}
		if r.Protocol != "" {
			c.oneOf(at+".protocol", r.Protocol, "tcp", "udp")
		}
		c.word(at+".host", r.Host)
		c.word(at+".preset", r.Preset)
		c.text(at+".note", r.Note)
	}
}
