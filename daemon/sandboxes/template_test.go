package sandboxes_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/fake"
)

func TestTemplates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tp := w.Templates()
	ok := caisson.Template{Name: "tpl", Image: "debian:12"}
	first := got(tp.PutTemplate(w.ctx(), ok))(t)
	for _, c := range []struct {
		field  string
		kind   caisson.Kind
		change func(*caisson.Template)
	}{
		{"name", caisson.Invalid, func(t *caisson.Template) { t.Name = "" }},
		{"name", caisson.Invalid, func(t *caisson.Template) { t.Name = "A" }},
		{"", caisson.Denied, func(t *caisson.Template) { t.Name = "host" }},
		{"image", caisson.Invalid, func(t *caisson.Template) { t.Image = "" }},
		{"image", caisson.Invalid, func(t *caisson.Template) { t.Image = "A B" }},
		{"mounts", caisson.Invalid, func(t *caisson.Template) { t.Mounts = []caisson.Mount{{}} }},
		{"pool", caisson.Invalid, func(t *caisson.Template) { t.Pool = -1 }},
		{"pool", caisson.Invalid, func(t *caisson.Template) { t.Pool = 65 }},
		{"setup", caisson.Invalid, func(t *caisson.Template) { t.Setup = make([]caisson.SetupStep, 65) }},
		{"setup[0].run", caisson.Invalid, func(t *caisson.Template) { t.Setup = make([]caisson.SetupStep, 1) }},
		{"setup[1].run", caisson.Invalid, func(t *caisson.Template) {
			t.Setup = []caisson.SetupStep{{Run: []string{"a"}}, {Run: []string{"a\x00"}}}
		}},
		{"setup[0].files[0].path", caisson.Invalid, seeded("")},
		{"setup[0].files[0].path", caisson.Invalid, seeded("/")},
		{"setup[0].files[0].path", caisson.Invalid, seeded("etc/a")},
		{"setup[0].files[0].path", caisson.Invalid, seeded("/etc/../a")},
		{"setup[0].files[0].path", caisson.Invalid, seeded("/etc/")},
		{"setup[0].files[0].path", caisson.Invalid, seeded("/a\x00")},
		{"setup[0].files[0].path", caisson.Invalid, seeded("/proc/self/mem")},
		{"setup[0].files[0].path", caisson.Invalid, seeded("/.caisson/init")},
		{"setup[0].files[0].mode", caisson.Invalid, func(t *caisson.Template) {
			seeded("/a")(t)
			t.Setup[0].Files[0].Mode = 0o4755
		}},
		{"setup", caisson.Invalid, seeded(make([]string, 65)...)},
		{"setup", caisson.Invalid, func(t *caisson.Template) {
			seeded("/a", "/b")(t)
			t.Setup[0].Files[1].Data = strings.Repeat("x", 4<<20+1)
		}},
		{"command", caisson.Invalid, func(t *caisson.Template) { t.Command = []string{""} }},
		{"env", caisson.Invalid, func(t *caisson.Template) { t.Env = map[string]string{"-": ""} }},
		{"workdir", caisson.Invalid, func(t *caisson.Template) { t.Workdir = "x" }},
		{"user", caisson.Invalid, func(t *caisson.Template) { t.User = "-" }},
		{"labels", caisson.Invalid, func(t *caisson.Template) { t.Labels = map[string]string{"": ""} }},
		{"resources.memory", caisson.Invalid, func(t *caisson.Template) { t.Resources.Memory = 1 }},
		{"ttl", caisson.Invalid, func(t *caisson.Template) { t.TTL = -1 }},
		{"hardTtl", caisson.Invalid, func(t *caisson.Template) { t.HardTTL = -1 }},
	} {
		tpl := ok
		c.change(&tpl)
		_, err := tp.PutTemplate(w.ctx(), tpl)
		wantKind(t, err, c.kind)
		if caisson.FieldOf(err) != c.field {
			t.Errorf("the field is %q, want %q: %v", caisson.FieldOf(err), c.field, err)
		}
	}
	var err error
	for _, ctx := range []context.Context{w.as("local"), w.ownWork()} {
		_, err = tp.PutTemplate(ctx, caisson.Template{Name: "path", Image: "dir:/etc"})
		wantKind(t, err, caisson.Denied)
	}
	if got(tp.GetTemplate(w.ctx(), "tpl"))(t).Image != "debian:12" {
		t.Error("a refused change has changed the template")
	}
	ok.Description = "again"
	if second := got(tp.PutTemplate(w.ctx(), ok))(t); !second.CreatedAt.Equal(first.CreatedAt) || second.Description != "again" {
		t.Errorf("put again: %+v", second)
	}
	var names []string
	for _, x := range got(tp.ListTemplates(w.ctx()))(t) {
		names = append(names, x.Name)
	}
	if strings.Join(names, " ") != "host tpl" {
		t.Errorf("listed %v", names)
	}
	wantKind(t, tp.RemoveTemplate(w.ctx(), "host"), caisson.Denied)
	must(t, tp.RemoveTemplate(w.ctx(), "tpl"))
	wantKind(t, tp.RemoveTemplate(w.ctx(), "tpl"), caisson.NotFound)
	_, err = tp.GetTemplate(w.ctx(), "tpl")
	wantKind(t, err, caisson.NotFound)
	if b := got(tp.BuildTemplate(w.ctx(), "host", caisson.RegistryAuth{}, nil))(t); b.Built != nil {
		t.Errorf("the built-in template was built: %+v", b.Built)
	}
}

// seeded adds a set-up step with files to a template; empty names in a list of several are numbered.
func seeded(paths ...string) func(*caisson.Template) {
	return func(t *caisson.Template) {
		step := caisson.SetupStep{Run: []string{"a"}}
		for i, p := range paths {
			if p == "" && len(paths) > 1 {
				p = fmt.Sprint("/", i)
			}
			step.Files = append(step.Files, caisson.SeedFile{Path: p})
		}
		t.Setup = []caisson.SetupStep{step}
	}
}

// TestSeedFiles: a step finds its files, later steps keep them, and other files are another build.
func TestSeedFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tpl := caisson.Template{Name: "tpl", Image: "debian:12", Setup: []caisson.SetupStep{
		{Run: command("stat", "/srv/deep/down/a"), Files: []caisson.SeedFile{
			{Path: "/srv/deep/down/a", Data: "first\n", Mode: 0o700}, {Path: "/srv/b", Data: "second\n"},
		}},
		{Run: command("stat", "/srv/c"), Files: []caisson.SeedFile{{Path: "/srv/c", Data: "third\n"}}},
	}}
	got(w.Templates().PutTemplate(w.ctx(), tpl))(t)
	var said []string
	built := got(w.Templates().BuildTemplate(w.ctx(), "tpl", caisson.RegistryAuth{}, func(p caisson.Progress) {
		if p.Message != "" {
			said = append(said, p.Message)
		}
	}))(t)
	if strings.Join(said, ", ") != "file 0700 0 0 6, file 0644 0 0 6" {
		t.Errorf("the steps said %q", said)
	}
	sb := w.create(caisson.CreateRequest{Template: "tpl"})
	for path, mode := range map[string]string{"/srv/deep/down/a": "0700", "/srv/b": "0644"} {
		if info := got(w.Files().StatFile(w.ctx(), string(sb.ID), path))(t); info.Mode != mode {
			t.Errorf("%s has mode %s, want %s", path, info.Mode, mode)
		}
	}
	if put := got(w.Templates().PutTemplate(w.ctx(), tpl))(t); put.Built == nil {
		t.Error("the same steps have undone the build")
	}
	for name, change := range map[string]func(*caisson.SeedFile){
		"data": func(f *caisson.SeedFile) { f.Data = "other\n" },
		"mode": func(f *caisson.SeedFile) { f.Mode = 0o600 },
		"path": func(f *caisson.SeedFile) { f.Path = "/srv/d" },
	} {
		other := tpl
		other.Setup = []caisson.SetupStep{tpl.Setup[0], {Run: command("stat", "/srv/b"), Files: []caisson.SeedFile{tpl.Setup[1].Files[0]}}}
		change(&other.Setup[1].Files[0])
		if put := got(w.Templates().PutTemplate(w.ctx(), other))(t); put.Built != nil {
			t.Errorf("%s: still built", name)
		}
		if b, _ := w.build(w.ctx(), "tpl"); b.Built.Key == built.Built.Key {
			t.Errorf("%s: the same key", name)
		}
	}
}

// steps returns set-up steps that write files.
func steps(files ...string) (list []caisson.SetupStep) {
	for _, f := range files {
		list = append(list, caisson.SetupStep{Run: command("fill", f, "3")})
	}
	return list
}

// build builds a template and returns the number of steps that were run.
func (w *world) build(ctx context.Context, name string) (*caisson.Template, int) {
	w.t.Helper()
	ran := 0
	tpl := got(w.Templates().BuildTemplate(ctx, name, caisson.RegistryAuth{}, func(p caisson.Progress) {
		if strings.HasPrefix(p.Stage, "setup ") && p.Message == "" {
			ran++
		}
	}))(w.t)
	return tpl, ran
}

func TestBuild(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	tp := w.Templates()
	tpl := caisson.Template{Name: "tpl", Image: "debian:12", Setup: steps("/srv/a", "/srv/b"), User: "agent"}
	got(tp.PutTemplate(w.ctx(), tpl))(t)
	_, err := w.Sandboxes().Create(w.ctx(), caisson.CreateRequest{Template: "tpl"})
	wantKind(t, err, caisson.Conflict)

	built, ran := w.build(w.ctx(), "tpl")
	if ran != 2 || built.Built == nil {
		t.Fatalf("%d steps ran, built %+v", ran, built.Built)
	}
	w.holds()
	sb := w.create(caisson.CreateRequest{Template: "tpl"})
	if len(w.read(string(sb.ID), "/srv/b")) != 3 || sb.Spec.Digest != built.Built.Rootfs.Digest {
		t.Errorf("what set-up made is not there; digest %s, built %s", sb.Spec.Digest, built.Built.Rootfs.Digest)
	}
	again, ran := w.build(w.ctx(), "tpl")
	if ran != 0 || again.Built.Key != built.Built.Key {
		t.Errorf("the second build ran %d steps", ran)
	}
	tpl.Description, tpl.Setup[0].Timeout = "changed", caisson.Duration(time.Minute)
	if put := got(tp.PutTemplate(w.ctx(), tpl))(t); put.Built == nil {
		t.Error("a change that does not matter to the build has undone it")
	}
	for name, change := range map[string]func(){
		"step":  func() { tpl.Setup = steps("/srv/a", "/srv/c") },
		"env":   func() { tpl.Env = map[string]string{"A": "b"} },
		"image": func() { tpl.Image = "alpine:3" },
	} {
		change()
		if put := got(tp.PutTemplate(w.ctx(), tpl))(t); put.Built != nil {
			t.Errorf("%s: still built", name)
		}
		if changed, ran := w.build(w.ctx(), "tpl"); ran != 2 || changed.Built.Key == built.Built.Key {
			t.Errorf("%s: %d steps ran", name, ran)
		}
	}
	// Another account has a separate build, even of the same steps.
	tpl = caisson.Template{Name: "tpl", Image: "debian:12", Setup: steps("/srv/a", "/srv/b")}
	got(tp.PutTemplate(w.as("other"), tpl))(t)
	if other, ran := w.build(w.as("other"), "tpl"); ran != 2 || other.Built.Key == built.Built.Key || other.Built.Rootfs.Layers[0] == built.Built.Rootfs.Layers[0] {
		t.Errorf("%d steps ran for the other account, layers %v", ran, other.Built.Rootfs.Layers)
	}
	w.holds(sb.ID)
	if n := w.images.Held(); n != 0 {
		t.Errorf("%d holds are left", n)
	}
}

func TestFailedBuild(t *testing.T) {
	t.Parallel()
	sayer := func([]string) fake.Program {
		return fake.Func(func(_ context.Context, p *fake.Proc) int {
			fmt.Fprintln(p.Stdout(), "working")
			fmt.Fprintln(p.Stderr(), "it broke")
			return 4
		})
	}
	// daemon leaves a background process that keeps its output open.
	daemon := func(args []string) fake.Program {
		return fake.Func(func(ctx context.Context, p *fake.Proc) int {
			if _, err := p.Spawn(fake.Child{Args: command("sleep", "1h")}); err != nil {
				return 1
			}
			fmt.Fprintln(p.Stdout(), "started")
			return 0
		})
	}
	w := plan{wires: true, programs: map[string]func([]string) fake.Program{"/fails": sayer, "/daemon": daemon}}.world(t)
	tp := w.Templates()
	for _, c := range []struct {
		name  string
		step  caisson.SetupStep
		spoil func()
		kind  caisson.Kind
		says  []string
	}{
		{"fails", caisson.SetupStep{Run: []string{"/fails", "now"}}, nil, caisson.Invalid, []string{"/fails now", "exited with 4", "it broke"}},
		{"time", caisson.SetupStep{Run: command("sleep", "1h"), Timeout: caisson.Duration(30 * time.Millisecond)}, nil, caisson.Invalid, []string{"time limit"}},
		{"unknown", caisson.SetupStep{Run: []string{"/nowhere"}}, nil, caisson.Invalid, nil},
		{"save", steps("/srv/x")[0], func() { w.runtime.FailNext(fake.OpSaveFiles, errInjected) }, caisson.Internal, nil},
		{"create", steps("/srv/x")[0], func() { w.runtime.FailNext(fake.OpCreate, errInjected) }, caisson.Internal, nil},
		{"wire", steps("/srv/x")[0], func() { w.wires.failNext(errInjected) }, caisson.Internal, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got(tp.PutTemplate(w.ctx(), caisson.Template{Name: "tpl", Image: "host", Setup: append(steps("/srv/a"), c.step)}))(t)
			if c.spoil != nil {
				c.spoil()
			}
			_, err := tp.BuildTemplate(w.ctx(), "tpl", caisson.RegistryAuth{}, nil)
			wantKind(t, err, c.kind)
			for _, s := range c.says {
				if !strings.Contains(caisson.MessageOf(err), s) {
					t.Errorf("%q does not say %q", caisson.MessageOf(err), s)
				}
			}
			if got(tp.GetTemplate(w.ctx(), "tpl"))(t).Built != nil {
				t.Error("it is built")
			}
			w.holds()
		})
	}
	got(tp.PutTemplate(w.ctx(), caisson.Template{Name: "tpl", Image: "host", Setup: []caisson.SetupStep{{Run: command("sleep", "1h")}}}))(t)
	ctx, cancel := context.WithCancel(w.ctx())
	_, err := tp.BuildTemplate(ctx, "tpl", caisson.RegistryAuth{}, func(p caisson.Progress) {
		if p.Stage == "setup 1/1" {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	w.holds()
	got(tp.PutTemplate(w.ctx(), caisson.Template{Name: "tpl", Image: "host", Setup: []caisson.SetupStep{{Run: []string{"/daemon"}}}}))(t)
	said := ""
	got(tp.BuildTemplate(w.ctx(), "tpl", caisson.RegistryAuth{}, func(p caisson.Progress) { said += p.Message }))(t)
	if said != "started" {
		t.Errorf("progress said %q", said)
	}
	w.holds()
}

// TestBuildOvertaken: the template changes while it is built.
func TestBuildOvertaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tpl := caisson.Template{Name: "tpl", Image: "host", Setup: steps("/srv/a")}
	got(w.Templates().PutTemplate(w.ctx(), tpl))(t)
	tpl.Env = map[string]string{"A": "b"}
	_, err := w.Templates().BuildTemplate(w.ctx(), "tpl", caisson.RegistryAuth{}, func(p caisson.Progress) {
		if p.Stage == "freeze" {
			got(w.Templates().PutTemplate(w.ctx(), tpl))(t)
		}
	})
	wantKind(t, err, caisson.Conflict)
	if got(w.Templates().GetTemplate(w.ctx(), "tpl"))(t).Built != nil {
		t.Error("it counts as built, from what it no longer is")
	}
}

// TestPutAtOnce puts the same template concurrently.
func TestPutAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if _, err := w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "tpl", Image: "debian:12"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestBuildAtOnce: concurrent builds of one template wait for one another, and only the first one runs steps.
func TestBuildAtOnce(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	got(w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "tpl", Image: "debian:12", Setup: steps("/srv/a")}))(t)
	var ran atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			built, err := w.Templates().BuildTemplate(w.ctx(), "tpl", caisson.RegistryAuth{}, func(p caisson.Progress) {
				if p.Stage == "freeze" {
					ran.Add(1)
				}
			})
			if err != nil || built.Built == nil {
				t.Errorf("%+v, %v", built, err)
			}
		})
	}
	wg.Wait()
	if n := ran.Load(); n != 1 {
		t.Errorf("it was built %d times", n)
	}
	w.holds()
}

// TestBuildShared: templates of an account with the same set-up are built once, also concurrently, and the removal of one does not
// affect the other.
func TestBuildShared(t *testing.T) {
	t.Parallel()
	w := plan{wires: true}.world(t)
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		got(w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: name, Image: "debian:12", Setup: steps("/srv/a"), User: "user-" + name}))(t)
	}
	var ran atomic.Int32
	var wg sync.WaitGroup
	for _, name := range names {
		wg.Go(func() {
			_, err := w.Templates().BuildTemplate(w.ctx(), name, caisson.RegistryAuth{}, func(p caisson.Progress) {
				if strings.HasPrefix(p.Stage, "setup ") && p.Message == "" {
					ran.Add(1)
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if ran.Load() != 1 {
		t.Errorf("%d steps ran", ran.Load())
	}
	first, second := got(w.Templates().GetTemplate(w.ctx(), "a"))(t), got(w.Templates().GetTemplate(w.ctx(), "b"))(t)
	if first.Built.Rootfs.Digest != second.Built.Rootfs.Digest || first.Built.Rootfs.Layers[0] != second.Built.Rootfs.Layers[0] {
		t.Errorf("built %+v and %+v", first.Built, second.Built)
	}
	for _, name := range []string{"a", "c", "d"} {
		must(t, w.Templates().RemoveTemplate(w.ctx(), name))
	}
	got(w.ImageService().PruneImages(w.ctx()))(t)
	if sb := w.create(caisson.CreateRequest{Template: "b"}); len(w.read(string(sb.ID), "/srv/a")) != 3 {
		t.Error("what set-up made is not there")
	}
	got(w.Templates().PutTemplate(w.ctx(), caisson.Template{Name: "a", Image: "debian:12", Setup: steps("/srv/a"), Env: map[string]string{"A": "b"}}))(t)
	if _, ran := w.build(w.ctx(), "a"); ran != 1 {
		t.Errorf("with another environment %d steps ran", ran)
	}
}
