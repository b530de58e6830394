package sandboxes

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/undo"
)

// Templates implements [caisson.Templates].
type Templates struct{ c *Core }

// Templates returns the service that manages templates.
func (c *Core) Templates() *Templates { return &Templates{c} }

var _ caisson.Templates = (*Templates)(nil)

// catalog reads templates.
type catalog struct {
	templates caisson.Table[caisson.Template]
}

// get returns a template of the caller's account, or a built-in one.
func (c catalog) get(ctx context.Context, name string) (*caisson.Template, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	if tpl := builtin(name); tpl != nil {
		return tpl, nil
	}
	tpl, err := c.templates.Get(ctx, in, name)
	if caisson.KindOf(err) == caisson.NotFound {
		return nil, caisson.Wrap(err, caisson.NotFound, "there is no template %.70q; caisson template ls lists the templates", name)
	}
	return tpl, err
}

// list returns the built-in templates and those in a scope.
func (c catalog) list(ctx context.Context, in caisson.Scope) ([]*caisson.Template, error) {
	list := []*caisson.Template{hostTemplate()}
	own, err := listAll(ctx, c.templates, in, func(t *caisson.Template) caisson.ID { return caisson.ID(t.Name) })
	return append(list, own...), err
}

// GetTemplate implements [caisson.Templates].
func (t *Templates) GetTemplate(ctx context.Context, name string) (*caisson.Template, error) {
	return t.c.catalog.get(ctx, name)
}

// ListTemplates implements [caisson.Templates].
func (t *Templates) ListTemplates(ctx context.Context) ([]*caisson.Template, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	return t.c.catalog.list(ctx, in)
}

// listAll returns all rows of a table.
func listAll[T any](ctx context.Context, table caisson.Table[T], in caisson.Scope, key func(*T) caisson.ID) ([]*T, error) {
	var list []*T
	f := caisson.Filter{Limit: 1000}
	for {
		page, more, err := table.List(ctx, in, f)
		if err != nil {
			return nil, err
		}
		list = append(list, page...)
		if !more || len(page) == 0 {
			return list, nil
		}
		f.After = key(page[len(page)-1])
	}
}

// PutTemplate implements [caisson.Templates].
func (t *Templates) PutTemplate(ctx context.Context, tpl caisson.Template) (*caisson.Template, error) {
	_, caller, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	if err := validateTemplate(&tpl); err != nil {
		return nil, err
	}
	if err := t.c.network.check(ctx, "", &tpl.Policy, tpl.Models); err != nil {
		return nil, err
	}
	if builtin(tpl.Name) != nil {
		return nil, caisson.Errorf(caisson.Denied, "%s is built in; choose another name", tpl.Name)
	}
	if ref, err := t.c.Images.Canonical(tpl.Image); err != nil {
		return nil, err
	} else if isPath(ref) && !caller.MayUseHost() {
		return nil, caisson.Errorf(caisson.Denied, "host paths are accepted only over the unix socket")
	}
	tpl.Account, tpl.CreatedAt, tpl.Built = caller.Account, now(), nil
	if _, err := t.c.Store.Accounts().Ensure(ctx, caller.Account); err != nil {
		return nil, err
	}
	put, err := t.insertOrReplace(ctx, &tpl)
	if err == nil {
		t.c.Events.Publish(ctx, caller.Account, "template.put", tpl.Name, nil)
		t.c.pool.refill(put)
	}
	return put, err
}

// insertOrReplace inserts a template, or replaces the one with the same name.
func (t *Templates) insertOrReplace(ctx context.Context, tpl *caisson.Template) (*caisson.Template, error) {
	table := t.c.Store.Templates()
	for {
		put, err := table.Update(ctx, caisson.In(tpl.Account), tpl.Name, func(old *caisson.Template) error {
			next := *tpl
			next.CreatedAt = old.CreatedAt
			if old.Image == tpl.Image && sameSteps(old.Setup, tpl.Setup) && maps.Equal(old.Env, tpl.Env) {
				next.Built = old.Built
			}
			*old = next
			return nil
		})
		if caisson.KindOf(err) != caisson.NotFound {
			return put, err
		}
		// A concurrent request may have inserted the same template; then that one is replaced.
		if err = table.Insert(ctx, tpl); caisson.KindOf(err) != caisson.Conflict {
			return tpl, err
		}
	}
}

// sameSteps reports whether two lists of set-up steps have the same commands and files; timeouts are not compared.
func sameSteps(a, b []caisson.SetupStep) bool {
	return slices.EqualFunc(a, b, func(x, y caisson.SetupStep) bool {
		return slices.Equal(x.Run, y.Run) && slices.Equal(x.Files, y.Files)
	})
}

// isPath reports whether the canonical form of an image reference is a path on the host.
func isPath(ref string) bool {
	return strings.HasPrefix(ref, "dir:") || strings.HasPrefix(ref, "tar:")
}

// Limits of a template.
const (
	maxSteps    = 64               // set-up steps
	maxPool     = 64               // sandboxes in its pool
	stepTimeout = 10 * time.Minute // timeout of a set-up step that sets none
)

// validateTemplate returns an Invalid error if a field of t is not valid. Policy and models are checked by network.check.
func validateTemplate(t *caisson.Template) error {
	if t.Name == "" {
		return caisson.Invalidf("name", "a name is required")
	}
	if t.Image == "" {
		return caisson.Invalidf("image", "an image is required: host, an OCI reference, dir:PATH or tar:PATH")
	}
	if len(t.Mounts) > 0 {
		return caisson.Invalidf("mounts", "a template cannot bring host directories; mount them when a sandbox is made (--mount)")
	}
	if t.Pool < 0 || t.Pool > maxPool {
		return caisson.Invalidf("pool", "%d is not between 0 and %d", t.Pool, maxPool)
	}
	if len(t.Setup) > maxSteps {
		return caisson.Invalidf("setup", "more than %d steps", maxSteps)
	}
	for i, s := range t.Setup {
		field := fmt.Sprintf("setup[%d].run", i)
		if len(s.Run) == 0 {
			return caisson.Invalidf(field, "say what to run")
		}
		if err := validateCommand(field, s.Run); err != nil {
			return err
		}
	}
	if err := validateSeeds(t.Setup); err != nil {
		return err
	}
	for _, err := range []error{
		validateName("name", t.Name), validateCommand("command", t.Command), validateEnv("env", t.Env), validatePath("workdir", t.Workdir),
		validateUser("user", t.User), validateLabels("labels", t.Labels), validateResources("resources", t.Resources), validateTTLs(&t.TTL, &t.HardTTL),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// RemoveTemplate implements [caisson.Templates].
func (t *Templates) RemoveTemplate(ctx context.Context, name string) error {
	in, caller, err := scope(ctx)
	if err != nil {
		return err
	}
	if builtin(name) != nil {
		return caisson.Errorf(caisson.Denied, "%s is built in", name)
	}
	if err := t.c.Store.Templates().Delete(ctx, in, name); err != nil {
		return err
	}
	t.c.Events.Publish(ctx, caller.Account, "template.removed", name, nil)
	return t.c.pool.removeAll(ctx, caller.Account, name)
}

// BuildTemplate implements [caisson.Templates].
func (t *Templates) BuildTemplate(ctx context.Context, name string, auth caisson.RegistryAuth, progress func(caisson.Progress)) (*caisson.Template, error) {
	c := t.c
	if progress == nil {
		progress = func(caisson.Progress) {}
	}
	_, caller, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	// Concurrent builds of the same template wait here, and then find it built.
	release, err := c.builds.Acquire(ctx, caller.Account+"/"+name)
	if err != nil {
		return nil, err
	}
	defer release()
	tpl, err := c.catalog.get(ctx, name)
	if err != nil {
		return nil, err
	}
	defer c.Images.Hold()()
	req := caisson.PullRequest{Reference: tpl.Image, Auth: auth}
	img, err := c.ImageService().Pull(ctx, req, progress)
	if err != nil {
		return nil, err
	}
	if tpl.Account == "" {
		return tpl, nil // A built-in template has no layer to build.
	}
	key := buildKey(img, tpl)
	if tpl.Built != nil && tpl.Built.Key == key {
		progress(caisson.Progress{Stage: "setup", Detail: "unchanged since " + tpl.Built.At.Format(time.DateTime)})
		return tpl, nil
	}
	rootfs := img.Rootfs
	if len(tpl.Setup) > 0 {
		if rootfs, err = c.Templates().setup(ctx, tpl, img, key, progress); err != nil {
			return nil, err
		}
	}
	built := &caisson.Built{Key: key, Rootfs: rootfs, At: now()}
	done, err := c.Store.Templates().Update(ctx, caisson.In(tpl.Account), name, func(stored *caisson.Template) error {
		if stored.Image != tpl.Image || !sameSteps(stored.Setup, tpl.Setup) || !maps.Equal(stored.Env, tpl.Env) {
			return caisson.Errorf(caisson.Conflict, "the template was changed while it was built; build it again")
		}
		stored.Built = built
		return nil
	})
	if err == nil {
		c.Events.Publish(ctx, tpl.Account, "template.built", name, map[string]string{"key": key})
		c.pool.refill(done)
	}
	return done, err
}

// buildKey returns the hash of all inputs of a build.
func buildKey(img *caisson.Image, t *caisson.Template) string {
	steps := make([][]string, len(t.Setup))
	files := map[int][]caisson.SeedFile{}
	for i, s := range t.Setup {
		steps[i] = s.Run
		if len(s.Files) > 0 {
			files[i] = s.Files
		}
	}
	data, err := json.Marshal(struct {
		Account, Image string
		Steps          [][]string
		Env            map[string]string
		Files          map[int][]caisson.SeedFile `json:",omitempty"`
	}{t.Account, img.Digest, steps, t.Env, files})
	if err != nil {
		return "" // cannot fail: strings can always be encoded
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// setup runs a template's steps in a sandbox of its image, and stores the resulting changes as a layer.
func (t *Templates) setup(ctx context.Context, tpl *caisson.Template, img *caisson.Image, key string, progress func(caisson.Progress)) (rootfs caisson.Rootfs, err error) {
	sb, _, release, err := t.c.Sandboxes().prepare(ctx, &caisson.CreateRequest{Image: tpl.Image, Env: tpl.Env, Resources: tpl.Resources})
	if err != nil {
		return rootfs, err
	}
	defer release()
	sb.Spec.Command, sb.Spec.User, sb.Spec.Workdir = nil, "0:0", "/"
	// The steps may download what the template's policy allows. The result belongs to the account, which is part of the
	// build key.
	sb.Spec.Policy = tpl.Policy
	if _, err := t.c.Store.Accounts().Ensure(ctx, sb.Account); err != nil {
		return rootfs, err
	}
	admitted, err := t.c.admission.admit(ctx, sb.ID, 0)
	if err != nil {
		return rootfs, err
	}
	defer admitted()
	// The sandbox is not stored: the API does not show it, and after a crash CollectGarbage removes it.
	defer t.c.hidden.hold(sb.ID)()
	var back undo.Stack
	defer func() { err = errors.Join(err, back.Run()) }()
	back.Push(func() error { return t.c.removeSandboxDir(context.WithoutCancel(ctx), sb.ID) })
	if err := t.c.makeDir(sb); err != nil {
		return rootfs, err
	}
	if err := t.c.processes.run(ctx, sb, source{}); err != nil {
		return rootfs, err
	}
	back.Push(func() error { return t.c.processes.halt(context.WithoutCancel(ctx), sb.ID) })
	for i, step := range tpl.Setup {
		stage := fmt.Sprintf("setup %d/%d", i+1, len(tpl.Setup))
		progress(caisson.Progress{Stage: stage, Detail: strings.Join(step.Run, " "), Done: int64(i), Total: int64(len(tpl.Setup))})
		if err := t.writeSeeds(ctx, sb.ID, step.Files); err != nil {
			return rootfs, err
		}
		if err := t.runStep(ctx, sb, step, func(line string) { progress(caisson.Progress{Stage: stage, Message: line}) }); err != nil {
			return rootfs, err
		}
	}
	progress(caisson.Progress{Stage: "freeze"})
	tar := t.c.inDir(sb.ID, filesTar)
	if err := writeFile(tar, func(f *os.File) error { return t.c.Runtime.SaveFiles(ctx, sb.ID, f) }); err != nil {
		return rootfs, err
	}
	f, err := os.Open(tar)
	if err != nil {
		return rootfs, err
	}
	defer f.Close()
	digest, dir, err := t.c.Images.Freeze(ctx, sb.Account, f)
	if err != nil {
		return rootfs, err
	}
	sum := sha256.Sum256([]byte(img.Digest + "\n" + digest))
	rootfs = img.Rootfs
	rootfs.Digest = "sha256:" + hex.EncodeToString(sum[:])
	rootfs.Layers = append([]string{dir}, rootfs.Layers...)
	return rootfs, nil
}

// runStep runs one set-up step, and calls line for each line of its output.
func (t *Templates) runStep(ctx context.Context, sb *caisson.Sandbox, step caisson.SetupStep, line func(string)) error {
	limit := time.Duration(step.Timeout)
	if limit == 0 {
		limit = stepTimeout
	}
	p, err := t.c.Runtime.Exec(ctx, sb.ID, caisson.RuntimeExec{Command: step.Run, Env: env(sb.Spec.Env), Workdir: "/"})
	if err != nil {
		return err
	}
	proc := limitTime(p, limit)
	defer proc.Close()
	defer context.AfterFunc(ctx, func() {
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = proc.Signal(sctx, int(unix.SIGKILL))
	})()
	var mu sync.Mutex
	one := func(s string) { mu.Lock(); defer mu.Unlock(); line(s) }
	out, errOut := make(chan string, 1), make(chan string, 1)
	go func() { out <- scan(proc.Stdout(), one) }()
	go func() { errOut <- scan(proc.Stderr(), one) }()
	status, err := proc.Wait(ctx)
	// Processes that the step has left running may keep its outputs open, so that the readers above do not return.
	defer time.AfterFunc(outputTimeout, func() { proc.Close() }).Stop()
	last := firstNonEmpty(<-errOut, <-out)
	if err != nil {
		return err
	}
	if !status.Success() {
		return caisson.Errorf(caisson.Invalid, "set-up step %.100q %s; it said last: %.200q", strings.Join(step.Run, " "), status, last)
	}
	return nil
}

// outputTimeout is how long the output of a step may stay open after the step has ended.
const outputTimeout = 2 * time.Second

// maxLine is the maximum length in bytes of a line of a step's output; longer lines are cut.
const maxLine = 4096

// scan calls line for every line of r that is not empty, cut to maxLine bytes, and returns the last one.
func scan(r io.Reader, line func(string)) (last string) {
	br := bufio.NewReaderSize(r, maxLine)
	for {
		b, prefix, err := br.ReadLine()
		if err != nil {
			return last
		}
		s := string(b)
		for prefix && err == nil {
			_, prefix, err = br.ReadLine()
		}
		if s != "" {
			last = s
			line(s)
		}
	}
}
