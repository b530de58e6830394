// Package apitest contains tests of the interfaces of the API. Cores must pass them when they are called directly, and when they
// are called through client and server.
package apitest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

// Cores are the services of the API under test, and the functions that tests need besides the API.
type Cores struct {
	caisson.API
	// Secrets returns the values of the credentials that were set through the API, which does not return them.
	Secrets caisson.Secrets
	// Charge adds calls of models to the ledger.
	Charge func(ctx context.Context, calls ...caisson.Call) error
}

// Timeout is the time limit of each test of the suite, and of single waits in other tests.
const Timeout = 5 * time.Minute

// Test checks that cores implement the domain's interfaces as documented. open returns a context with a caller, and new cores
// for that caller.
func Test(t *testing.T, open func(t *testing.T) (context.Context, Cores)) {
	for _, tt := range []struct {
		name string
		test func(*testing.T, context.Context, Cores)
	}{
		{"lifecycle", testLifecycle},
		{"listing", testListing},
		{"snapshots", testSnapshots},
		{"templates", testTemplates},
		{"images", testImages},
		{"files", testFiles},
		{"trees", testTrees},
		{"events", testEvents},
		{"tokens", testTokens},
		{"policies", testPolicies},
		{"credentials", testCredentials},
		{"audit", testAudit},
		{"ledger", testLedger},
		{"budgets", testBudgets},
		{"models", testModels},
		{"gateway runs", testGatewayRuns},
		{"daemon", testDaemon},
		{"agents", testAgents},
		{"runs", testRuns},
		{"runs that wait", testWaitingRuns},
		{"run pages", testRunPages},
		{"run events", testRunEvents},
		{"run workspaces", testRunWorkspaces},
		{"runs within runs", testRunTrees},
		{"sessions", testSessions},
		{"workspaces", testWorkspaces},
		{"workspace changes", testWorkspaceChanges},
		{"workspace syncs", testSyncs},
		{"workspaces that move", testConflicts},
		{"repos", testRepos},
		{"deliveries", testDeliveries},
		{"repos in sandboxes", testSandboxRepos},
		{"volumes", testVolumes},
		{"services", testServices},
		{"volume pages", testVolumePages},
		{"volume holds", testVolumeAttach},
		{"routes", testRoutes},
		{"processes", testProcesses},
		{"terminals", testTerminals},
		{"exec", testExec},
		{"exec floods", testFlood},
		{"exec ends", testExecEnds},
		{"connections", testConnections},
		{"connections refused", testConnectionsRefused},
		{"connection limit", testConnectionLimit},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, cores := open(t)
			ctx, cancel := context.WithTimeout(ctx, Timeout)
			defer cancel()
			tt.test(t, ctx, cores)
		})
	}
}

// must takes the results of a call, as in must(f())(t). It returns a function that returns v, or fails the test if err is not
// nil.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// succeeds fails the test if err is not nil.
func succeeds(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Fails checks that err is an error of this kind about this field. field is "" for an error that is about no field.
func Fails(t testing.TB, err error, kind caisson.Kind, field string) {
	t.Helper()
	if err == nil || caisson.KindOf(err) != kind || caisson.FieldOf(err) != field {
		t.Errorf("error %v of kind %s about %q, want kind %s about %q", err, caisson.KindOf(err), caisson.FieldOf(err), kind, field)
	}
}

// createSandbox creates a sandbox and fails the test if that is not possible.
func createSandbox(t testing.TB, ctx context.Context, c Cores, req caisson.CreateRequest) *caisson.Sandbox {
	t.Helper()
	return must(c.Sandboxes.Create(ctx, req))(t)
}

// testLifecycle checks the states of a sandbox from its creation to its removal.
func testLifecycle(t *testing.T, ctx context.Context, c Cores) {
	ttl := caisson.Duration(90 * time.Minute)
	sb := createSandbox(t, ctx, c, caisson.CreateRequest{
		Name: "a", NoStart: true, Labels: map[string]string{"k": "v"}, Env: map[string]string{"A": "b"}, TTL: &ttl,
		Resources: caisson.Resources{CPUs: 1.5, Memory: 64 << 20},
	})
	if sb.State != caisson.Created || sb.Spec.Resources.Memory != 64<<20 || sb.Spec.Env["A"] != "b" || sb.Labels["k"] != "v" {
		t.Errorf("created %+v", sb)
	}
	_, err := c.Sandboxes.Create(ctx, caisson.CreateRequest{Name: "a"})
	Fails(t, err, caisson.Conflict, "")
	_, err = c.Sandboxes.Create(ctx, caisson.CreateRequest{Name: "full", Image: "full:1"})
	Fails(t, err, caisson.Exhausted, "")
	_, err = c.Sandboxes.Pause(ctx, "a")
	Fails(t, err, caisson.Conflict, "")
	for _, step := range []struct {
		do   func(context.Context, string) (*caisson.Sandbox, error)
		want caisson.State
	}{
		{c.Sandboxes.Start, caisson.Running},
		{c.Sandboxes.Pause, caisson.Paused},
		{c.Sandboxes.Resume, caisson.Running},
		{c.Sandboxes.Suspend, caisson.Suspended},
		{c.Sandboxes.Wake, caisson.Running},
		{func(ctx context.Context, ref string) (*caisson.Sandbox, error) {
			return c.Sandboxes.Stop(ctx, ref, time.Second)
		}, caisson.Stopped},
		{c.Sandboxes.Start, caisson.Running},
	} {
		if got := must(step.do(ctx, string(sb.ID)))(t); got.State != step.want {
			t.Errorf("state %s, want %s", got.State, step.want)
		}
	}
	wake, pause := time.Now().Add(time.Hour).UTC().Truncate(time.Second), caisson.AutoPause{Suspend: ttl, Stop: 2 * ttl}
	got := must(c.Sandboxes.Extend(ctx, "a", caisson.ExtendRequest{AutoPause: &pause, WakeAt: &wake}))(t)
	if got.Spec.AutoPause != pause || got.WakeAt == nil || !got.WakeAt.Equal(wake) {
		t.Errorf("extend: %+v, %v", got.Spec.AutoPause, got.WakeAt)
	}
	got = must(c.Sandboxes.Extend(ctx, "a", caisson.ExtendRequest{AutoPause: &caisson.AutoPause{}, WakeAt: &time.Time{}}))(t)
	if got.WakeAt != nil || got.Spec.AutoPause != (caisson.AutoPause{}) {
		t.Errorf("extend to never: %+v, %v", got.Spec.AutoPause, got.WakeAt)
	}
	_, err = c.Sandboxes.Extend(ctx, "a", caisson.ExtendRequest{AutoPause: &caisson.AutoPause{Suspend: 2, Stop: 1}})
	Fails(t, err, caisson.Invalid, "autoPause.stop")
	if got := must(c.Sandboxes.Extend(ctx, "a", caisson.ExtendRequest{TTL: &ttl}))(t); got.PauseAt == nil || got.RemoveAt != nil {
		t.Errorf("extend: %v %v", got.PauseAt, got.RemoveAt)
	}
	succeeds(t, c.Sandboxes.Remove(ctx, "a"))
	Fails(t, c.Sandboxes.Remove(ctx, "a"), caisson.NotFound, "")
	_, err = c.Sandboxes.Get(ctx, string(sb.ID))
	Fails(t, err, caisson.NotFound, "")
	_, err = c.Sandboxes.Get(ctx, "ü/ %2e?#&=")
	Fails(t, err, caisson.NotFound, "")
}

// testListing checks filters and pages of the list of sandboxes.
func testListing(t *testing.T, ctx context.Context, c Cores) {
	var ids []caisson.ID
	for i := range 5 {
		sb := createSandbox(t, ctx, c, caisson.CreateRequest{Labels: map[string]string{"odd": []string{"no", "yes"}[i%2]}, NoStart: i == 4})
		ids = append(ids, sb.ID)
	}
	var got []caisson.ID
	f := caisson.Filter{Limit: 2}
	for {
		page, more, err := c.Sandboxes.List(ctx, f)
		if err != nil || len(page) > 2 {
			t.Fatal(page, err)
		}
		for _, sb := range page {
			got = append(got, sb.ID)
		}
		if !more {
			break
		}
		f.After = page[len(page)-1].ID
	}
	if diff := cmp.Diff(ids, got); diff != "" {
		t.Error(diff)
	}
	for want, f := range map[int]caisson.Filter{
		2: {Labels: map[string]string{"odd": "yes"}},
		4: {States: []caisson.State{caisson.Running, caisson.Paused}},
		1: {States: []caisson.State{caisson.Created}},
		0: {Name: "nobody"},
	} {
		if page, _, err := c.Sandboxes.List(ctx, f); err != nil || len(page) != want {
			t.Errorf("%+v: %d sandboxes, %v; want %d", f, len(page), err, want)
		}
	}
}

func testSnapshots(t *testing.T, ctx context.Context, c Cores) {
	sb := createSandbox(t, ctx, c, caisson.CreateRequest{})
	must(c.Files.WriteFile(ctx, string(sb.ID), "/f", 0, strings.NewReader("x")))(t)
	s := must(c.Snapshots.Snapshot(ctx, string(sb.ID), caisson.SnapshotRequest{Name: "snap", FilesOnly: true}))(t)
	if s.Memory || s.Sandbox != sb.ID {
		t.Errorf("%+v", s)
	}
	if got := must(c.Snapshots.GetSnapshot(ctx, "snap"))(t); got.ID != s.ID {
		t.Errorf("%+v", got)
	}
	if page, more, err := c.Snapshots.ListSnapshots(ctx, caisson.Filter{}); len(page) != 1 || more || err != nil {
		t.Error(page, more, err)
	}
	forks := must(c.Snapshots.Fork(ctx, "snap", caisson.ForkRequest{Count: 2, Name: "f"}))(t)
	if len(forks) != 2 || forks[0].Parent != s.ID || forks[1].Name != "f-2" {
		t.Errorf("%+v", forks)
	}
	must(c.Files.StatFile(ctx, "f-1", "/f"))(t)
	succeeds(t, c.Snapshots.RemoveSnapshot(ctx, "snap"))
	_, err := c.Snapshots.GetSnapshot(ctx, "snap")
	Fails(t, err, caisson.NotFound, "")
}

func testTemplates(t *testing.T, ctx context.Context, c Cores) {
	tmpl := caisson.Template{Name: "t", Image: "debian:12", Setup: []caisson.SetupStep{{Run: []string{"echo", "\x1b[2J\u2028ü"}}, {Run: []string{"echo"}}}}
	put := must(c.Templates.PutTemplate(ctx, tmpl))(t)
	put.Description = "changed" // a template that was read can be stored again
	must(c.Templates.PutTemplate(ctx, *put))(t)
	var steps []caisson.Progress
	built := must(c.Templates.BuildTemplate(ctx, "t", caisson.RegistryAuth{}, func(p caisson.Progress) { steps = append(steps, p) }))(t)
	said := slices.ContainsFunc(steps, func(p caisson.Progress) bool { return p.Message == "\x1b[2J\u2028ü" })
	if !said || built.Built == nil || built.Built.Key == "" || !slices.ContainsFunc(steps, func(p caisson.Progress) bool { return p.Done == 1 && p.Total == 2 }) {
		t.Errorf("%+v, steps %+v", built, steps)
	}
	must(c.Templates.PutTemplate(ctx, *built))(t)
	tmpl.Name, tmpl.Setup[1].Run = "bad", []string{"fail"}
	must(c.Templates.PutTemplate(ctx, tmpl))(t)
	_, err := c.Templates.BuildTemplate(ctx, "bad", caisson.RegistryAuth{}, nil)
	Fails(t, err, caisson.Invalid, "")
	_, err = c.Templates.BuildTemplate(ctx, "nowhere", caisson.RegistryAuth{}, nil)
	Fails(t, err, caisson.NotFound, "")
	_, err = c.Templates.PutTemplate(ctx, caisson.Template{Name: "host", Image: "host"})
	Fails(t, err, caisson.Denied, "")
	if list := must(c.Templates.ListTemplates(ctx))(t); len(list) != 3 {
		t.Errorf("%+v", list)
	}
	succeeds(t, c.Templates.RemoveTemplate(ctx, "bad"))
	_, err = c.Templates.GetTemplate(ctx, "bad")
	Fails(t, err, caisson.NotFound, "")
}

func testImages(t *testing.T, ctx context.Context, c Cores) {
	var stages []string
	ref := "registry.example:5000/a/b:1"
	img := must(c.Images.Pull(ctx, caisson.PullRequest{Reference: ref}, func(p caisson.Progress) { stages = append(stages, p.Stage) }))(t)
	if img.Reference != ref || !slices.Equal(stages, []string{"pull", "unpack"}) {
		t.Errorf("%+v, stages %v", img, stages)
	}
	_, err := c.Images.Pull(ctx, caisson.PullRequest{Reference: "unreachable"}, nil)
	Fails(t, err, caisson.Unavailable, "")
	_, err = c.Images.Pull(ctx, caisson.PullRequest{Reference: "other", Offline: true}, nil)
	Fails(t, err, caisson.NotFound, "")
	if list := must(c.Images.ListImages(ctx))(t); !slices.ContainsFunc(list, func(i *caisson.Image) bool { return i.Reference == ref }) {
		t.Errorf("%+v", list)
	}
	Fails(t, c.Images.RemoveImage(ctx, "other"), caisson.NotFound, "")
	succeeds(t, c.Images.RemoveImage(ctx, ref))
	must(c.Images.Pull(ctx, caisson.PullRequest{Reference: ref}, nil))(t)
	if freed := must(c.Images.PruneImages(ctx))(t); freed == 0 {
		t.Errorf("freed %d", freed)
	}
	// A cancelled pull returns.
	ctx, cancel := context.WithCancel(ctx)
	_, err = c.Images.Pull(ctx, caisson.PullRequest{Reference: "slow"}, func(p caisson.Progress) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func testFiles(t *testing.T, ctx context.Context, c Cores) {
	sb := string(createSandbox(t, ctx, c, caisson.CreateRequest{}).ID)
	name := "/dir/ü ?&#%2f.txt"
	big := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
	info := must(c.Files.WriteFile(ctx, sb, name, 0o4750, strings.NewReader(big)))(t)
	if info.Size != 1<<20 || info.Mode != "4750" || info.Path != name {
		t.Errorf("%+v", info)
	}
	read := func(offset, limit int64) string {
		r := must(c.Files.ReadFile(ctx, sb, name, offset, limit))(t)
		defer r.Close()
		return string(must(io.ReadAll(r))(t))
	}
	if read(0, 0) != big || read(10, 6) != "abcdef" || read(1<<20-1, 0) != "f" || read(1<<20, 0) != "" {
		t.Error("reads something else")
	}
	if list := must(c.Files.ListFiles(ctx, sb, "/dir"))(t); len(list) != 1 || list[0].Path != name {
		t.Errorf("%+v", list)
	}
	watching, stop := context.WithCancel(ctx)
	changes := must(c.Files.WatchFiles(watching, sb, "/", true))(t)
	succeeds(t, c.Files.MakeDir(ctx, sb, "/x/y", true))
	if e := <-changes; e.Op == "" || !strings.HasPrefix(e.Path, "/x") {
		t.Errorf("%+v", e)
	}
	stop()
	for range changes { // changes is closed when the context ends
	}
	Fails(t, c.Files.MakeDir(ctx, sb, "/x/y", false), caisson.Conflict, "")
	succeeds(t, c.Files.MoveFile(ctx, sb, name, "/x/y/z"))
	Fails(t, c.Files.RemoveFile(ctx, sb, "/x", false), caisson.Conflict, "")
	succeeds(t, c.Files.RemoveFile(ctx, sb, "/x", true))
	_, err := c.Files.StatFile(ctx, sb, "/x/y/z")
	Fails(t, err, caisson.NotFound, "")
	_, err = c.Files.ReadFile(ctx, sb, "/dir", 0, 0)
	Fails(t, err, caisson.Conflict, "")
	_, err = c.Files.WriteFile(ctx, "nobody", "/f", 0, strings.NewReader(big))
	Fails(t, err, caisson.NotFound, "")
	_, err = c.Files.WriteFile(ctx, sb, "/g", 0, io.MultiReader(strings.NewReader("half"), iotest.ErrReader(errors.New("disk on fire"))))
	if err == nil {
		t.Error("a broken upload was accepted")
	}
	_, err = c.Files.StatFile(ctx, sb, "/g")
	Fails(t, err, caisson.NotFound, "")
}

// testTrees checks that file trees can be read and written as tar archives.
func testTrees(t *testing.T, ctx context.Context, c Cores) {
	sb := string(createSandbox(t, ctx, c, caisson.CreateRequest{}).ID)
	for _, p := range []string{"/a/1", "/a/b/2"} {
		must(c.Files.WriteFile(ctx, sb, p, 0, strings.NewReader(p)))(t)
	}
	r := must(c.Files.ReadTree(ctx, sb, "/a"))(t)
	archive := must(io.ReadAll(r))(t)
	r.Close()
	var names []string
	for tr := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if !slices.Equal(names, []string{"a/", "a/1", "a/b/", "a/b/2"}) {
		t.Error(names)
	}
	succeeds(t, c.Files.MakeDir(ctx, sb, "/to", false))
	succeeds(t, c.Files.WriteTree(ctx, sb, "/to", bytes.NewReader(archive)))
	must(c.Files.StatFile(ctx, sb, "/to/a/b/2"))(t)
	Fails(t, c.Files.WriteTree(ctx, sb, "/nowhere", bytes.NewReader(archive)), caisson.NotFound, "")
	if err := c.Files.WriteTree(ctx, sb, "/to", strings.NewReader(strings.Repeat("no tar", 1000))); caisson.KindOf(err) != caisson.Invalid {
		t.Error(err)
	}
}

func testEvents(t *testing.T, ctx context.Context, c Cores) {
	a := createSandbox(t, ctx, c, caisson.CreateRequest{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := must(c.Events.Watch(ctx, "", 0))(t)
	first := <-events
	for first.Type != "sandbox.running" && first.Subject == string(a.ID) {
		first = <-events
	}
	if first.Subject != string(a.ID) {
		t.Errorf("%+v", first)
	}
	b := createSandbox(t, ctx, c, caisson.CreateRequest{})
	if e := <-events; e.Subject != string(b.ID) || e.Seq <= first.Seq {
		t.Errorf("%+v", e)
	}
	replay := must(c.Events.Watch(ctx, string(b.ID), first.Seq))(t)
	if e := <-replay; e.Subject != string(b.ID) {
		t.Errorf("%+v", e)
	}
	cancel()
	for range events {
	}
	for range replay {
	}
}

func testTokens(t *testing.T, ctx context.Context, c Cores) {
	account := must(caisson.CallerOf(ctx))(t).Account
	token, secret, err := c.Tokens.CreateToken(ctx, account, "ci", time.Hour)
	if err != nil || secret.IsZero() || secret.Reveal() == "[redacted]" || token.ExpiresAt == nil {
		t.Fatal(token, err)
	}
	if list := must(c.Tokens.ListTokens(ctx))(t); len(list) != 1 || list[0].ID != token.ID {
		t.Errorf("%+v", list)
	}
	succeeds(t, c.Tokens.RemoveToken(ctx, token.ID))
	Fails(t, c.Tokens.RemoveToken(ctx, token.ID), caisson.NotFound, "")
}

func testDaemon(t *testing.T, ctx context.Context, c Cores) {
	if info := must(c.Daemon.Info(ctx))(t); info.Version != "1.0" || info.Build == "" || info.Runtime.Name == "" {
		t.Errorf("%+v", info)
	}
	if usage := must(c.Daemon.DiskUsage(ctx))(t); len(usage.Usages) == 0 || usage.Total == 0 {
		t.Errorf("%+v", usage)
	}
	if garbage := must(c.Daemon.CollectGarbage(ctx))(t); len(garbage) != 0 {
		t.Errorf("%+v", garbage)
	}
	if checks := must(c.Daemon.Examine(ctx))(t); len(checks) != 1 {
		t.Errorf("%+v", checks)
	}
}
