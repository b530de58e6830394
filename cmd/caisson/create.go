package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// sandboxFlags are the flags for the properties of a new sandbox.
type sandboxFlags struct {
	Name      string            `help:"Name of the sandbox, which can be used instead of its id." group:"new" placeholder:"NAME"`
	Image     string            `help:"Image instead of the template's: debian:12, dir:PATH, tar:PATH or host." group:"new" placeholder:"REF" complete:"image"`
	CPUs      float64           `name:"cpus" positive:"" help:"Processor time, in cores." group:"new" placeholder:"N"`
	Memory    caisson.Size      `positive:"" help:"Limit of memory: 512M, 2GiB." group:"new" placeholder:"SIZE"`
	PIDs      int               `name:"pids" positive:"" help:"Limit of processes and threads." group:"new" placeholder:"N"`
	Disk      caisson.Size      `positive:"" help:"Limit of data written to the root file system, and the same limit for the workspace." group:"new" placeholder:"SIZE"`
	OpenFiles int               `positive:"" help:"Limit of open files of one process." group:"new" placeholder:"N"`
	Mount     []string          `help:"Mount a host directory in the sandbox, read-only unless :rw is appended; may be repeated." group:"new" placeholder:"SRC:DST[:rw]" sep:"none" complete:"file"`
	Workspace string            `help:"Show a host directory inside, by default as /workspace, and keep what is written for a review (see diff and sync)." group:"new" placeholder:"DIR[:TARGET]" complete:"file"`
	Volume    string            `help:"Give it this volume, by default as /workspace; it is created if there is none of that name, and keeps its files. See volume ls." group:"new" placeholder:"NAME[:TARGET]" complete:"volume"`
	Label     []string          `help:"Add a label; may be repeated." short:"l" group:"new" placeholder:"KEY=VALUE" sep:"none"`
	TTL       *caisson.Duration `name:"ttl" help:"Pause the sandbox after this time; 0s means never." group:"new" placeholder:"DURATION"`
	HardTTL   *caisson.Duration `name:"hard-ttl" help:"Remove the sandbox after this time; 0s means never." group:"new" placeholder:"DURATION"`
	autoPauseFlags
	NoPool bool `help:"Do not take a sandbox from the warm pool." group:"new"`
	workspaceFlags
	grantFlags
}

// grantFlags are the flags for the destinations, models and limits that are granted to a new sandbox.
type grantFlags struct {
	Policy    string   `help:"Egress policy, as YAML (see policy set); like --allow and --deny, it replaces that of the template, or of the source of a fork." group:"new" placeholder:"FILE" complete:"file"`
	Allow     []string `help:"Allow connections to a preset or TARGET[:PORTS][/udp]; may be repeated." group:"new" placeholder:"SPEC" sep:"none"`
	Deny      []string `help:"Keep it from a destination, before all that is allowed; may be repeated." group:"new" placeholder:"SPEC" sep:"none"`
	Model     []string `help:"Grant the model with this alias; may be repeated, the first one is the default." group:"new" placeholder:"ALIAS" complete:"model" sep:"none"`
	Budget    string   `help:"What its calls of models may cost: 5 or 0.25USD." group:"new" placeholder:"USD"`
	MaxTokens string   `help:"Maximum number of tokens of its model calls: 200000, 200k or 1M." group:"new" placeholder:"N"`
	MaxCalls  string   `help:"Maximum number of its model calls." group:"new" placeholder:"N"`
	gatewayFlags
}

// createCmd creates a sandbox.
type createCmd struct {
	Template string   `arg:"" optional:"" help:"Template, or an image reference with a tag or prefix (debian:12, dir:PATH); default host." complete:"template"`
	Command  []string `arg:"" optional:"" passthrough:"" help:"What it runs from the start, after --; without one it waits for exec."`
	Env      []string `help:"Set an environment variable, or pass one on from the environment; may be repeated." short:"e" placeholder:"NAME[=VALUE]" sep:"none"`
	Workdir  string   `help:"Directory to run in." short:"w" placeholder:"DIR"`
	User     string   `help:"User inside: name, uid or uid:gid." short:"u" placeholder:"USER"`
	Snapshot string   `help:"Start from this snapshot instead of a template." placeholder:"SNAPSHOT" complete:"snapshot"`
	NoStart  bool     `help:"Only create it; start it later."`
	randomnessFlags
	sandboxFlags
	cloneFlags
	registryLogin
}

func (c *createCmd) Help() string {
	return examples("caisson sandbox create", "caisson sandbox create --name web debian:12 -- sleep infinity",
		"caisson sandbox create --mount .:/work:rw --memory 4G --ttl 1h host",
		"caisson sandbox create --workspace ~/project --name dev debian:12",
		"caisson sandbox create --volume data:/srv/data --name db debian:12",
		"caisson sandbox create --repo web --branch fix/login --name dev",
		"caisson sandbox create --allow npm --allow api.example.com:443")
}

// ProvideClone returns the clone that the flags specify; nil if they specify no repository.
func (c *createCmd) ProvideClone() (*clone, error) { return c.clone(&c.sandboxFlags, c.NoStart) }

func (c *createCmd) Run(ctx context.Context, a *app, clone *clone, api api) (err error) {
	m := sandboxCreator{app: a, api: api, login: c.registryLogin, flags: c.sandboxFlags}
	c.Template, c.Command = splitCommand(a.args, c.Template, trimDashes(c.Command))
	req := caisson.CreateRequest{Command: c.Command, Workdir: c.Workdir, User: c.User, NoStart: c.NoStart, KeepRandomness: c.KeepRandomness}
	if req.Env, err = a.parseEnv(c.Env); err != nil {
		return err
	}
	if c.Snapshot != "" {
		if c.Template != "" || c.Image != "" {
			return usagef("sandbox create", "--snapshot takes the place of a template and an image")
		}
		s, err := api.GetSnapshot(ctx, c.Snapshot)
		if err != nil {
			return err
		}
		req.Snapshot = s.ID
	}
	if clone != nil { // a request for an unknown repository fails before an image is pulled
		if _, err := api.GetRepo(ctx, clone.repo.Name); err != nil {
			return err
		}
	}
	s, err := m.create(ctx, c.Template, req)
	if err != nil {
		return err
	}
	warnSuspects(ctx, a, api, s)
	if clone != nil {
		if err := clone.cloneInto(ctx, a, api, s); err != nil {
			return err
		}
	}
	a.warnShared(s)
	return printDone(a, s, string(s.ID))
}

// sandboxCreator creates sandboxes as the flags specify.
type sandboxCreator struct {
	app   *app
	api   api
	login registryLogin // used if the image must be pulled
	flags sandboxFlags  // flags for the properties of each new sandbox
}

// create creates a sandbox from source, a template or an image, with the properties in req and those of the flags, which take
// precedence. It opens the directories to be mounted and pulls the image first, so that progress is shown and the user's own
// registry logins are used.
func (m *sandboxCreator) create(ctx context.Context, source string, req caisson.CreateRequest) (*caisson.Sandbox, error) {
	f := m.flags
	var err error
	if req.Labels, err = parseLabels(f.Label); err != nil {
		return nil, err
	}
	for _, s := range f.Mount {
		mount, err := parseMount(s)
		if err != nil {
			return nil, err
		}
		req.Mounts = append(req.Mounts, mount)
	}
	switch {
	case f.Volume != "" && f.Workspace != "":
		return nil, usagef("sandbox create", "--volume and --workspace exclude each other: a sandbox has one workspace")
	case f.Volume != "" && !f.workspaceFlags.anySet():
		if req.Workspace, err = volumeRequest(f.Volume); err != nil {
			return nil, err
		}
	case f.Workspace != "":
		dir, target, err := parseWorkspace(f.Workspace)
		if err != nil {
			return nil, err
		}
		if req.Workspace, err = f.workspaceFlags.request(m.app, dir, target); err != nil {
			return nil, err
		}
	case f.workspaceFlags.anySet():
		return nil, usagef("sandbox create", "--workspace-kind, --sync and --show-hidden need --workspace")
	}
	req.Name, req.TTL, req.HardTTL, req.NoPool = f.Name, f.TTL, f.HardTTL, f.NoPool
	req.AutoPause, req.FinalSnapshot = f.AutoPause.value(), f.FinalSnapshot
	req.Resources = caisson.Resources{CPUs: f.CPUs, Memory: f.Memory, PIDs: f.PIDs, Disk: f.Disk, OpenFiles: f.OpenFiles}
	if req.Policy, err = m.app.policyFrom(f.Policy, f.Allow, f.Deny); err != nil {
		return nil, err
	}
	if req.Models, err = f.models(); err != nil {
		return nil, err
	}
	req.Image = f.Image
	if isImage(source) {
		if req.Image != "" {
			return nil, usagef("sandbox create", "%s is an image already; leave out --image", source)
		}
		req.Image = source
	} else {
		req.Template = source
	}
	if err := m.prepareTemplate(ctx, &req); err != nil {
		return nil, err
	}
	if req.Image != "" && req.Image != caisson.HostTemplate {
		img, err := ensureImage(ctx, m.app, m.api, req.Image, m.login)
		if err != nil {
			return nil, err
		}
		req.Image = img.Reference
	}
	if req.Directories, err = openMounts(req.Mounts); err != nil {
		return nil, err
	}
	if len(req.Directories) > 0 && !m.app.overSocket() {
		closeAll(req.Directories)
		return nil, caisson.Invalidf("mount", "a daemon elsewhere cannot see directories of this machine; use cp")
	}
	return m.api.Create(ctx, req)
}

// models returns the grant of models that the flags specify. It is nil if they specify none: a sandbox then gets the grant of its
// template, and a fork gets none.
func (f *grantFlags) models() (*caisson.ModelGrant, error) {
	budget, err := parseLimits(limitFlag{"--budget", f.Budget}, limitFlag{"--max-tokens", f.MaxTokens}, limitFlag{"--max-calls", f.MaxCalls})
	switch {
	case err != nil:
		return nil, err
	case len(f.Model) > 0:
		use, err := f.gatewayUse()
		if err != nil {
			return nil, err
		}
		return &caisson.ModelGrant{Models: f.Model, Budget: budget, Rate: use.Rate, Allow: use.Allow, Record: use.Record}, nil
	case !budget.IsZero() || f.anySet():
		return nil, caisson.Invalidf("model", "limits and grants for models need --model")
	}
	return nil, nil
}

// prepareTemplate prepares a request for a template that refers to files of this machine. The daemon never opens such files by
// path; this command opens them, with the rights of the user who runs it. prepareTemplate puts the template's mounts before
// those of the request, and pulls the template's image if it is a directory or an archive.
func (m *sandboxCreator) prepareTemplate(ctx context.Context, req *caisson.CreateRequest) error {
	if req.Template == "" || req.Template == caisson.HostTemplate {
		return nil
	}
	t, err := m.api.GetTemplate(ctx, req.Template)
	if isNotFound(err) {
		return caisson.Errorf(caisson.NotFound, "there is no template %.80q; see caisson template ls, or name an image with its tag, like %.80s:latest",
			req.Template, req.Template)
	}
	if err != nil {
		return err
	}
	req.Mounts = slices.Concat(t.Mounts, req.Mounts)
	if req.Image != "" || !isPathImage(t.Image) {
		return nil
	}
	_, err = m.api.Pull(ctx, caisson.PullRequest{Reference: t.Image, Offline: true}, nil)
	if caisson.KindOf(err) == caisson.NotFound {
		_, err = pullImage(ctx, m.app, m.api, caisson.PullRequest{Reference: t.Image}, m.login)
	}
	return err
}

// isImage reports whether s is an image reference rather than a template. A name without a tag is never an image: a mistyped
// template must not run an untrusted image with that name from a public registry.
func isImage(s string) bool { return strings.ContainsAny(s, ":/@") }

// parseMount parses SRC:DST[:rw|:ro]. SRC may contain colons, DST may not.
func parseMount(s string) (caisson.Mount, error) {
	rest := s
	var m caisson.Mount
	if r, ok := strings.CutSuffix(rest, ":rw"); ok {
		rest, m.Writable = r, true
	} else if r, ok := strings.CutSuffix(rest, ":ro"); ok {
		rest = r
	}
	i := strings.LastIndexByte(rest, ':')
	if i <= 0 || i == len(rest)-1 || strings.ContainsRune(s, 0) {
		return m, caisson.Invalidf("mount", "%.80q is not SRC:DST or SRC:DST:rw", s)
	}
	m.Source, m.Target = rest[:i], rest[i+1:]
	if !filepath.IsAbs(m.Target) || filepath.Clean(m.Target) == "/" {
		return m, caisson.Invalidf("mount", "%.80q is not an absolute path below / inside the sandbox", m.Target)
	}
	m.Target = filepath.Clean(m.Target)
	var err error
	if m.Source, err = filepath.Abs(m.Source); err != nil {
		return m, err
	}
	return m, nil
}

// openMounts opens the sources of mounts with the rights of the user who runs this command.
func openMounts(mounts []caisson.Mount) ([]caisson.Handle, error) {
	var dirs []caisson.Handle
	for _, m := range mounts {
		f, err := os.OpenFile(m.Source, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			closeAll(dirs)
			return nil, localError("mount", m.Source, err)
		}
		dirs = append(dirs, f)
	}
	return dirs, nil
}

// closeAll closes handles that were opened for reading.
func closeAll(hs []caisson.Handle) {
	for _, h := range hs {
		_ = h.Close() // the error is ignored: nothing was written
	}
}

// parseLabels parses KEY=VALUE pairs.
func parseLabels(list []string) (map[string]string, error) {
	var m map[string]string
	for _, s := range list {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return nil, caisson.Invalidf("label", "%.80q is not KEY=VALUE", s)
		}
		if m == nil {
			m = map[string]string{}
		}
		m[k] = v
	}
	return m, nil
}

// parseEnv parses NAME=VALUE pairs; a NAME without = gets the value in this command's environment.
func (a *app) parseEnv(list []string) (map[string]string, error) {
	var m map[string]string
	for _, s := range list {
		k, v, ok := strings.Cut(s, "=")
		if k == "" || strings.ContainsRune(s, 0) {
			return nil, caisson.Invalidf("env", "%.80q is not NAME=VALUE or NAME", s)
		}
		if !ok {
			v = a.getenv(k)
		}
		if m == nil {
			m = map[string]string{}
		}
		m[k] = v
	}
	return m, nil
}

// splitCommand returns the template and the command of arguments such as "create -- sleep 9", in which everything after -- is the
// command. It corrects the result of kong, which takes the first word of the command for a template.
func splitCommand(args []string, template string, command []string) (string, []string) {
	i := slices.Index(args, "--")
	if i >= 0 && template != "" && len(args)-i-1 == 1+len(command) {
		return "", args[i+1:]
	}
	return template, command
}

// trimDashes returns args without the -- at their beginning, if there is one.
func trimDashes(args []string) []string {
	if len(args) > 0 && args[0] == "--" {
		return args[1:]
	}
	return args
}

// quoteCommand joins the words of a command, with quotes where a shell needs them.
func quoteCommand(args []string) string {
	out := make([]string, len(args))
	for i, s := range args {
		if out[i] = s; s == "" || strings.ContainsAny(s, " \t\n'\"\\$`&|;<>()*?[]#~!{}") {
			out[i] = "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}
