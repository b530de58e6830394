package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent"
	"github.com/caisson-dev/caisson/daemon/sqlite/sqlitetest"
)

// A shelf is a catalog with a real store and a temporary directory.
type shelf struct {
	*agent.Catalog
	t    *testing.T
	dir  string
	logs *logs
}

type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), s)
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	store := sqlitetest.New(t)
	s := &shelf{t: t, dir: t.TempDir(), logs: &logs{}}
	s.Catalog = agent.New(agent.Config{
		Builtin: agent.Builtin(), Dir: s.dir, Table: store.Agents(), Log: slog.New(slog.NewTextHandler(s.logs, nil)),
		EnsureAccount: func(ctx context.Context, account string) error {
			_, err := store.Accounts().Ensure(ctx, account)
			return err
		},
		CheckPolicy: func(_ context.Context, field string, p caisson.Policy) error {
			for _, r := range p.Rules {
				if r.Host == "169.254.169.254" {
					return caisson.Invalidf(field, "not this one")
				}
			}
			return nil
		},
	})
	return s
}

func (s *shelf) file(name, data string) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path+".new", []byte(data), 0o644); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		s.t.Fatal(err)
	}
}

// ids returns the ids of the agents that ctx's caller can list.
func (s *shelf) ids(ctx context.Context) []string {
	s.t.Helper()
	list, err := s.ListAgents(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	var ids []string
	for _, a := range list {
		ids = append(ids, a.ID)
	}
	if !slices.IsSorted(ids) {
		s.t.Errorf("%q is in no order", ids)
	}
	return ids
}

func as(t *testing.T, account string, local bool) context.Context {
	return caisson.WithCaller(t.Context(), caisson.Caller{Account: account, Local: local})
}

func mine() caisson.Agent {
	return caisson.Agent{ID: "mine", Name: "Mine", Image: "host", Driver: caisson.DriverExec, Command: []string{"/bin/agent"}}
}

func wantKind(t *testing.T, err error, kind caisson.Kind, words string) {
	t.Helper()
	if err == nil || caisson.KindOf(err) != kind || !strings.Contains(err.Error(), words) {
		t.Errorf("error %v (%s), want %s and %q", err, caisson.KindOf(err), kind, words)
	}
}

// TestAccounts: an account can access its own agents and the common ones, but not those of other accounts.
func TestAccounts(t *testing.T) {
	s := newShelf(t)
	alice, bob := as(t, "alice", false), as(t, "bob", false)
	put, err := s.PutAgent(alice, mine())
	if err != nil || put.Account != "alice" || put.CreatedAt.IsZero() {
		t.Fatalf("%+v, %v", put, err)
	}
	if got, err := s.GetAgent(alice, "mine"); err != nil || got.Name != "Mine" {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = s.GetAgent(bob, "mine")
	wantKind(t, err, caisson.NotFound, "caisson agent ls")
	wantKind(t, s.RemoveAgent(bob, "mine"), caisson.NotFound, "mine")
	if ids := s.ids(bob); slices.Contains(ids, "mine") || len(ids) != len(agent.Builtin()) {
		t.Errorf("bob sees %q", ids)
	}
	if ids := s.ids(alice); !slices.Contains(ids, "mine") {
		t.Errorf("alice sees %q", ids)
	}
	for _, ctx := range []context.Context{t.Context()} {
		_, err := s.ListAgents(ctx)
		wantKind(t, err, caisson.Unauthed, "")
		_, err = s.GetAgent(ctx, "shell")
		wantKind(t, err, caisson.Unauthed, "")
	}
	if err := s.RemoveAgent(alice, "mine"); err != nil {
		t.Error(err)
	}
	wantKind(t, s.RemoveAgent(alice, "mine"), caisson.NotFound, "caisson agent ls")
}

// TestPut checks which agents are refused, and which fields of a stored agent remain when it is stored again.
// TestSimilar tests that the first word of an agent's id is answered with the id.
func TestSimilar(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	for id, want := range map[string]string{"claude": `there is no agent "claude", did you mean claude-code? caisson agent ls`, "clau": `there is no agent "clau"; caisson agent ls`} {
		_, err := s.GetAgent(caisson.WithCaller(t.Context(), caisson.Caller{Account: caisson.LocalAccount}), id)
		if caisson.KindOf(err) != caisson.NotFound || !strings.HasPrefix(caisson.MessageOf(err), want) {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func TestPut(t *testing.T) {
	s := newShelf(t)
	remote, local := as(t, "alice", false), as(t, "alice", true)
	s.file("ours.yaml", strings.Replace(good, "mine", "ours", 1))
	for _, c := range []struct {
		name   string
		change func(*caisson.Agent)
		kind   caisson.Kind
		words  string
	}{
		{"built in", func(a *caisson.Agent) { a.ID = "openclaw" }, caisson.Denied, "every account"},
		{"the administrator's", func(a *caisson.Agent) { a.ID = "ours" }, caisson.Denied, "every account"},
		{"invalid", func(a *caisson.Agent) { a.Driver = "" }, caisson.Invalid, "driver"},
		{"a host path", func(a *caisson.Agent) { a.Image = "dir:/etc" }, caisson.Denied, "unix socket"},
		{"too much time", func(a *caisson.Agent) { a.Limits.Time = 2 * caisson.DefaultAgentLimits().Time }, caisson.Denied, "limits.time"},
		{"too many calls", func(a *caisson.Agent) { a.Limits.Calls = new(int64(1e6)) }, caisson.Denied, "limits.calls"},
		{"a long step", func(a *caisson.Agent) {
			a.Setup = []caisson.SetupStep{{Run: []string{"a"}, Timeout: caisson.Duration(30 * time.Minute)}, {Run: []string{"b"}, Timeout: caisson.Duration(30*time.Minute + 1)}}
		}, caisson.Denied, "setup[1].timeout: is more than"},
		{"many steps", func(a *caisson.Agent) {
			a.Setup = slices.Repeat([]caisson.SetupStep{{Run: []string{"a"}}}, 65)
		}, caisson.Invalid, "64 steps"},
		{"randomness that nobody has tested", func(a *caisson.Agent) {
			a.Service, a.Warm = []string{"/bin/bun"}, &caisson.Warm{Randomness: "openssl"}
		}, caisson.Denied, "driver openclaw"},
		{"a policy", func(a *caisson.Agent) {
			a.Policy.Rules = []caisson.Rule{{Action: caisson.Allow, Host: "169.254.169.254"}}
		}, caisson.Invalid, "not this one"},
		{"a policy of the build", func(a *caisson.Agent) {
			a.BuildPolicy.Rules = []caisson.Rule{{Action: caisson.Allow, Host: "169.254.169.254"}}
		}, caisson.Invalid, "buildPolicy"},
	} {
		a := mine()
		c.change(&a)
		_, err := s.PutAgent(remote, a)
		if wantKind(t, err, c.kind, c.words); t.Failed() {
			t.Fatal(c.name)
		}
	}
	wide := mine()
	wide.Image, wide.Limits.Time = "dir:/srv/root", 10*caisson.DefaultAgentLimits().Time
	wide.Account, wide.Status.Built = "bob", true // cannot be set by the caller
	put, err := s.PutAgent(local, wide)
	if err != nil || put.Account != "alice" || put.Status.Built {
		t.Errorf("%+v, %v", put, err)
	}
	wide.Name = "Other"
	again, err := s.PutAgent(local, wide)
	if err != nil || again.Name != "Other" || !again.CreatedAt.Equal(put.CreatedAt) {
		t.Errorf("%+v, %v", again, err)
	}
	wide.Setup = []caisson.SetupStep{{Run: []string{"a"}, Timeout: caisson.Duration(time.Hour)}}
	wide.Service, wide.Warm = []string{"/bin/node"}, &caisson.Warm{Randomness: "openssl"}
	if _, err := s.PutAgent(local, wide); err != nil {
		t.Error(err)
	}
	claw := caisson.Agent{ID: "claw", Name: "Claw", Image: "host", Driver: caisson.DriverOpenClaw, Warm: &caisson.Warm{Randomness: "openssl"}}
	if _, err := s.PutAgent(remote, claw); err != nil {
		t.Error(err)
	}
	wantKind(t, s.RemoveAgent(local, "shell"), caisson.Denied, "cannot be removed")
}

// TestRoom: the number of agents of an account is bounded, and existing ones can still be changed.
func TestRoom(t *testing.T) {
	s := newShelf(t)
	alice := as(t, "alice", false)
	a := mine()
	for i := range 200 {
		a.ID = fmt.Sprintf("mine-%d", i)
		if _, err := s.PutAgent(alice, a); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.PutAgent(alice, a); err != nil {
		t.Errorf("the last one again: %v", err)
	}
	_, err := s.PutAgent(alice, mine())
	wantKind(t, err, caisson.Exhausted, "caisson agent rm")
	if _, err := s.PutAgent(as(t, "bob", false), mine()); err != nil {
		t.Errorf("another account: %v", err)
	}
	if err := s.RemoveAgent(alice, "mine-7"); err != nil {
		t.Error(err)
	}
	if _, err := s.PutAgent(alice, mine()); err != nil {
		t.Errorf("after a removal: %v", err)
	}
}

// TestDirectory: files are read again when they change, and an invalid file does not affect the others.
func TestDirectory(t *testing.T) {
	s := newShelf(t)
	ctx := as(t, "alice", false)
	own := func(id string) string { return strings.Replace(good, "mine", id, 1) }
	s.file("a.yaml", own("first"))
	s.file("b.yml", own("second"))
	s.file("c.yaml", own("first"))
	s.file("d.yaml", own("shell"))
	s.file("e.yaml", "id: broken\ncolour: red\n")
	s.file("f.txt", "not looked at")
	s.file(".g.yaml", "not looked at")
	if err := os.Mkdir(filepath.Join(s.dir, "h.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(s.dir, "i.yaml")); err != nil {
		t.Fatal(err)
	}
	for range 3 { // logged only once
		ids := s.ids(ctx)
		if !slices.Contains(ids, "first") || !slices.Contains(ids, "second") || slices.Contains(ids, "broken") || len(ids) != len(agent.Builtin())+2 {
			t.Errorf("%q", ids)
		}
	}
	var faults []string
	for _, p := range s.Problems() {
		faults = append(faults, fmt.Sprintf("%s: %v", filepath.Base(p.File), p.Err))
	}
	for i, want := range []string{"c.yaml: id: first is that of a.yaml", "d.yaml: id: shell is built in", "e.yaml: colour: unknown key", "h.yaml: is not a regular file", "i.yaml: "} {
		if len(faults) <= i || !strings.HasPrefix(faults[i], want) {
			t.Errorf("faults %q, want %q", faults, want)
		}
	}
	if n := s.logs.count("e.yaml"); n != 1 {
		t.Errorf("a bad file was logged %d times", n)
	}
	if a, err := s.GetAgent(ctx, "shell"); err != nil || a.Name != "Shell" {
		t.Errorf("a file replaced a built-in agent: %+v, %v", a, err)
	}
	s.file("e.yaml", own("mended"))
	if err := os.Remove(filepath.Join(s.dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GetAgent(ctx, "mended"); err != nil {
		t.Error(err)
	}
	if _, err := s.GetAgent(ctx, "first"); err != nil { // the one in c.yaml
		t.Error(err)
	}
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatal(err)
	}
	if ids := s.ids(ctx); len(ids) != len(agent.Builtin()) {
		t.Errorf("%q without a directory", ids)
	}
	if p := s.Problems(); len(p) > 0 {
		t.Errorf("a directory that is not there is no problem: %v", p)
	}
}

// TestHidden: an agent that an account stored before the administrator added one with the same id is hidden, and can be
// removed.
func TestHidden(t *testing.T) {
	s := newShelf(t)
	ctx := as(t, "alice", false)
	if _, err := s.PutAgent(ctx, mine()); err != nil {
		t.Fatal(err)
	}
	s.file("mine.yaml", strings.Replace(good, "Mine", "The administrator's", 1))
	a, err := s.GetAgent(ctx, "mine")
	if err != nil || a.Account != "" || a.Name != "The administrator's" {
		t.Errorf("%+v, %v", a, err)
	}
	if ids := s.ids(ctx); len(ids) != len(agent.Builtin())+1 {
		t.Errorf("%q", ids)
	}
	if err := s.RemoveAgent(ctx, "mine"); err != nil {
		t.Error(err)
	}
	wantKind(t, s.RemoveAgent(ctx, "mine"), caisson.Denied, "cannot be removed")
}

// TestConcurrent: the catalog is read while files change.
func TestConcurrent(t *testing.T) {
	s := newShelf(t)
	ctx := as(t, "alice", false)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 50 {
				if _, err := s.ListAgents(ctx); err != nil {
					t.Error(err)
				}
				if _, err := s.GetAgent(ctx, fmt.Sprintf("agent-%d", i)); err != nil && caisson.KindOf(err) != caisson.NotFound {
					t.Error(err)
				}
			}
		})
	}
	for i := range 50 {
		s.file(fmt.Sprintf("%d.yaml", i%4), strings.Replace(good, "mine", fmt.Sprintf("agent-%d", i%4), 1))
	}
	wg.Wait()
}
