package sandboxes

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/keylock"
)

// Templates implements [caisson.Templates].
type Templates struct {
	catalog  catalog              // reads templates, including the built-in one
	accounts caisson.AccountStore // accounts with their host uids
	driver   Images               // pulls and unpacks images
	images   *ImageService        // finds and pulls images
	network  network              // configures wires and creates budgets
	events   caisson.Publisher
	pools    *pools   // manages pools of sandboxes
	builder  *builder // runs set-up steps
	// builds contains two kinds of locks: account/name is held during the build of a template, and account//key, acquired after
	// it, while set-up steps run; key is the hash of the inputs of the build.
	builds keylock.Locks
}

var _ caisson.Templates = (*Templates)(nil)

// catalog reads templates from the store, and adds the built-in one.
type catalog struct {
	templates caisson.Table[caisson.Template]
}

// get returns a template of the caller's account, or the built-in one.
func (c catalog) get(ctx context.Context, name string) (*caisson.Template, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	if name == caisson.HostTemplate {
		return hostTemplate(), nil
	}
	tpl, err := c.templates.Get(ctx, in, name)
	if caisson.KindOf(err) == caisson.NotFound {
		return nil, caisson.Wrap(err, caisson.NotFound, "there is no template %.70q; caisson template ls lists the templates", name)
	}
	return tpl, err
}

// list returns the built-in template and those in a scope, which is one account or all accounts.
func (c catalog) list(ctx context.Context, in caisson.Scope) ([]*caisson.Template, error) {
	list := []*caisson.Template{hostTemplate()}
	own, err := caisson.ListAll(ctx, c.templates, in, templateKey)
	return append(list, own...), err
}

// GetTemplate implements [caisson.Templates].
func (t *Templates) GetTemplate(ctx context.Context, name string) (*caisson.Template, error) {
	return t.catalog.get(ctx, name)
}

// ListTemplates implements [caisson.Templates].
func (t *Templates) ListTemplates(ctx context.Context) ([]*caisson.Template, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	return t.catalog.list(ctx, in)
}

// PutTemplate implements [caisson.Templates].
func (t *Templates) PutTemplate(ctx context.Context, tpl caisson.Template) (*caisson.Template, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := validateTemplate(&tpl); err != nil {
		return nil, err
	}
	if err := t.network.check(ctx, "", &tpl.Policy, tpl.Models); err != nil {
		return nil, err
	}
	if tpl.Name == caisson.HostTemplate {
		return nil, caisson.Errorf(caisson.Denied, "%s is built in; choose another name", tpl.Name)
	}
	if ref, err := t.driver.Canonical(tpl.Image); err != nil {
		return nil, err
	} else if isPath(ref) && !caller.MayUseHost() {
		return nil, caisson.Errorf(caisson.Denied, "host paths are accepted only over the unix socket")
	}
	tpl.Account, tpl.CreatedAt, tpl.Built = caller.Account, now(), nil
	if _, err := t.accounts.Ensure(ctx, caller.Account); err != nil {
		return nil, err
	}
	stored, err := insertOrChange(ctx, t.catalog.templates, tpl.Account, tpl.Name, &tpl, func(old *caisson.Template) error {
		next := tpl
		next.CreatedAt = old.CreatedAt
		if old.Image == tpl.Image && sameSteps(old.Setup, tpl.Setup) && maps.Equal(old.Env, tpl.Env) {
			next.Built = old.Built
		}
		*old = next
		return nil
	})
	if err == nil {
		t.events.Publish(ctx, caller.Account, "template.put", tpl.Name, nil)
		t.pools.refill(templatePoolKey(stored))
	}
	return stored, err
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
	maxSteps    = 64               // maximum number of set-up steps of a template
	maxPool     = 64               // maximum number of sandboxes in the pool of a template
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
			return caisson.Invalidf(field, "name the program to run")
		}
		if err := validateCommand(field, s.Run); err != nil {
			return err
		}
	}
	return cmp.Or(
		validateSeeds(t.Setup), validateName("name", t.Name), validateCommand("command", t.Command), validateEnv("env", t.Env),
		validatePath("workdir", t.Workdir), validateUser("user", t.User), caisson.CheckLabels("labels", t.Labels),
		validateResources("resources", t.Resources), validateTimes(&t.TTL, &t.HardTTL, &t.AutoPause),
		validateRequested("services", t.Services),
	)
}

// RemoveTemplate implements [caisson.Templates].
func (t *Templates) RemoveTemplate(ctx context.Context, name string) error {
	in, caller, err := caisson.ScopeOf(ctx)
	if err != nil {
		return err
	}
	if name == caisson.HostTemplate {
		return caisson.Errorf(caisson.Denied, "%s is built in", name)
	}
	if err := t.catalog.templates.Delete(ctx, in, name); err != nil {
		return err
	}
	t.events.Publish(ctx, caller.Account, "template.removed", name, nil)
	return t.pools.removeAll(ctx, poolKey{account: caller.Account, template: name})
}

// BuildTemplate implements [caisson.Templates].
func (t *Templates) BuildTemplate(ctx context.Context, name string, auth caisson.RegistryAuth, progress func(caisson.Progress)) (*caisson.Template, error) {
	if progress == nil {
		progress = func(caisson.Progress) {}
	}
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	// Concurrent builds of the same template wait here for the first one, and then find the template built.
	release, err := t.builds.Acquire(ctx, caller.Account+"/"+name)
	if err != nil {
		return nil, err
	}
	defer release()
	tpl, err := t.catalog.get(ctx, name)
	if err != nil {
		return nil, err
	}
	defer t.driver.ProtectLayers()()
	req := caisson.PullRequest{Reference: tpl.Image, Auth: auth}
	img, err := t.images.Pull(ctx, req, progress)
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
	// Concurrent builds with the same inputs, of several templates, wait here for the first one, and then use its result.
	releaseKey, err := t.builds.Acquire(ctx, tpl.Account+"//"+key)
	if err != nil {
		return nil, err
	}
	defer releaseKey()
	rootfs, err := t.setUp(ctx, tpl, img, key, progress)
	if err != nil {
		return nil, err
	}
	built := &caisson.Built{Key: key, Rootfs: rootfs, At: now()}
	done, err := t.catalog.templates.Update(ctx, caisson.In(tpl.Account), name, func(stored *caisson.Template) error {
		if stored.Image != tpl.Image || !sameSteps(stored.Setup, tpl.Setup) || !maps.Equal(stored.Env, tpl.Env) {
			return caisson.Errorf(caisson.Conflict, "the template was changed while it was built; build it again")
		}
		stored.Built = built
		return nil
	})
	if err == nil {
		t.events.Publish(ctx, tpl.Account, "template.built", name, map[string]string{"key": key})
		t.pools.refill(templatePoolKey(done))
	}
	return done, err
}

// setUp returns the root file system of a template: that of another template of the account with the same build key, whose steps
// were run with the same inputs, or that of a new build. The caller must hold the lock of the build key.
func (t *Templates) setUp(ctx context.Context, tpl *caisson.Template, img *caisson.Image, key string, progress func(caisson.Progress)) (caisson.Rootfs, error) {
	if len(tpl.Setup) == 0 {
		return img.Rootfs, nil
	}
	list, err := t.catalog.list(ctx, caisson.In(tpl.Account))
	if err != nil {
		return caisson.Rootfs{}, err
	}
	for _, other := range list {
		if other.Built != nil && other.Built.Key == key {
			progress(caisson.Progress{Stage: "setup", Detail: "the same as that of template " + other.Name})
			return other.Built.Rootfs, nil
		}
	}
	return t.builder.build(ctx, tpl, img, key, progress)
}

// buildKey returns the hash of everything that determines the result of the build of a template: account, image, steps, files and
// environment.
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
