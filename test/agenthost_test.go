package test_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// install is the timeout for installing an agent, or for booting and capturing it, on a busy machine.
const install = 10 * time.Minute

// An agentHost is the host of all tests of real agents, whose installations and snapshots are created once.
type agentHost struct {
	*modelHost
	*shared
}

// shared is the state that those tests share.
type shared struct {
	litellm, claude, gemini *upstream
	mu                      sync.Mutex
	made                    map[string]bool // Agents that are built; guarded by mu.
	warmed                  map[string]bool // Agents that have a warm snapshot; guarded by mu.
}

// agents is the agent host of this process, nil until a test requires it. agents and lasting are guarded by agentsMu.
var (
	agentsMu sync.Mutex
	agents   *agentHost
	lasting  *outlasting
)

// An outlasting is a [testing.TB] for resources that outlast the test that first required them.
type outlasting struct {
	testing.TB // That test; nil after its end.
	cleanups   []func()
	failed     bool
}

// Cleanup implements [testing.TB].
func (o *outlasting) Cleanup(f func()) { o.cleanups = append(o.cleanups, f) }

// Helper implements [testing.TB].
func (o *outlasting) Helper() {}

// Failed implements [testing.TB].
func (o *outlasting) Failed() bool { return o.failed }

// Errorf implements [testing.TB].
func (o *outlasting) Errorf(format string, args ...any) {
	o.failed = true
	fmt.Fprintf(os.Stderr, "the host of agents: "+format+"\n", args...)
}

// Error implements [testing.TB].
func (o *outlasting) Error(args ...any) { o.Errorf("%s", fmt.Sprint(args...)) }

// Logf implements [testing.TB].
func (o *outlasting) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// Fatalf implements [testing.TB].
func (o *outlasting) Fatalf(format string, args ...any) {
	o.Errorf(format, args...)
	if o.TB != nil {
		o.TB.Fatal("there is no host for agents")
	}
	panic("the host of agents cannot be closed")
}

// Fatal implements [testing.TB].
func (o *outlasting) Fatal(args ...any) { o.Fatalf("%s", fmt.Sprint(args...)) }

// end runs the cleanup functions and reports whether everything succeeded.
func (o *outlasting) end() (ok bool) {
	defer func() {
		if r := recover(); r != nil {
			fmt.Fprintln(os.Stderr, r)
			ok = false
		}
	}()
	o.TB = nil
	for _, f := range slices.Backward(o.cleanups) {
		f()
	}
	return !o.failed
}

// TestMain removes the shared resources after the tests.
func TestMain(m *testing.M) {
	if port := os.Getenv(serverVariable); port != "" {
		os.Exit(serveInside(port))
	}
	code := m.Run()
	if lasting != nil && !lasting.end() {
		code = max(code, 1)
	}
	os.Exit(code)
}

// newAgentHost returns the host of real agents for one more test.
func newAgentHost(t *testing.T) *agentHost {
	t.Helper()
	agentsMu.Lock()
	defer agentsMu.Unlock()
	if agents == nil {
		o := &outlasting{TB: t}
		done := false
		defer func() {
			if !done {
				o.end()
			}
		}()
		s := &shared{made: map[string]bool{}, warmed: map[string]bool{}}
		s.litellm = newUpstream(o, caisson.ProviderLiteLLM, agentScript(), false, newMeeting(2).wrap)
		s.claude = newUpstream(o, caisson.ProviderAnthropic, agentScript(), true, nil)
		s.gemini = newUpstream(o, caisson.ProviderGemini, agentScript(), true, nil)
		data, kept := keptData(o)
		h := newModelHostOn(o, data, []*upstream{s.litellm, s.claude, s.gemini}, agentModel("base", "litellm"), agentModel("large", "litellm"),
			agentModel("sonnet", "anthropic"), agentModel("flash", "gemini"))
		h.keep = kept
		h.agentsDir(map[string]string{"claw": claw})
		agents, lasting, done = &agentHost{h, s}, o, true
	}
	return agents.as(t)
}

// keptData returns a data directory in which an earlier run of the tests may have left a built OpenClaw template, and
// the templates to keep there. Building it takes a minute; everything else, including warm snapshots, is created by
// each run. The directory depends on the schema of the store, so that no older daemon opens a newer store, and is
// emptied unless the previous run left it in order. data is "" if all tests run, if another run uses the directory, or
// if its path would be too long for a socket.
func keptData(o *outlasting) (data string, kept []string) {
	cache, err := os.UserCacheDir()
	if err != nil || testneed.All() {
		return "", nil
	}
	migrations, err := filepath.Glob("../daemon/sqlite/migration/*.sql")
	if err != nil {
		o.Fatal(err)
	}
	sum := sha256.New()
	for _, name := range migrations {
		text, err := os.ReadFile(name)
		if err != nil {
			o.Fatal(err)
		}
		sum.Write(text)
	}
	dir := filepath.Join(cache, "caisson-test", fmt.Sprintf("agents-%.4x", sum.Sum(nil)))
	if len(dir) > 80 {
		return "", nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		o.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		o.Fatal(err)
	}
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		lock.Close()
		return "", nil
	}
	inOrder := filepath.Join(dir, "in-order") // Contains the path of the directory.
	if path, err := os.ReadFile(inOrder); err == nil && os.Remove(inOrder) == nil {
		data = string(path)
	} else {
		old, err := filepath.Glob(filepath.Join(dir, "d-*"))
		for _, name := range old {
			err = errors.Join(err, os.RemoveAll(name))
		}
		var mkErr error
		data, mkErr = os.MkdirTemp(dir, "d-")
		if err := errors.Join(err, mkErr); err != nil {
			o.Fatal(err)
		}
	}
	o.Cleanup(func() { // Runs after the cleanup of the host.
		if !o.failed {
			if err := os.WriteFile(inOrder, []byte(data), 0o600); err != nil {
				o.Error(err)
			}
		}
		lock.Close()
	})
	return data, []string{"agent-openclaw"}
}

// as returns the host for another test, or for a part of one.
func (h *agentHost) as(t *testing.T) *agentHost {
	return &agentHost{&modelHost{h.host.as(t), h.caller}, h.shared}
}

// as returns the host for another test, or for a part of one.
func (h *host) as(t *testing.T) *host {
	own := *h
	own.t = t
	return &own
}

// agentsDir configures the agents of the next daemon, as YAML by ID, and stops the current one.
func (h *modelHost) agentsDir(list map[string]string) {
	h.t.Helper()
	dir := filepath.Join(h.dir, "agents")
	for id, text := range list {
		h.write("agents/"+id+".yaml", "id: "+id+"\nname: "+id+"\n"+text)
	}
	h.configLine(fmt.Sprintf("agentsDir: %q", dir))
}

// configLine adds a line to the configuration and stops the daemon that does not have it.
func (h *host) configLine(line string) {
	h.t.Helper()
	config, err := os.ReadFile(h.configFile())
	if err != nil {
		h.t.Fatal(err)
	}
	h.configure(strings.TrimSpace(string(config)), line)
	if h.daemonPID() != 0 {
		h.endDaemon()
	}
}

// long is ok for commands that may take minutes.
func (h *host) long(args ...string) string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), install)
	defer cancel()
	out, err := h.command(ctx, args...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("caisson %s: %v\n%s", strings.Join(args, " "), err, out[max(0, len(out)-4000):])
	}
	return string(out)
}

// make builds an agent and, if warm is set, creates its warm snapshot; each once for all tests.
func (h *agentHost) make(id string, warm bool) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	begin := time.Now()
	if !h.made[id] {
		h.long("agent", "build", id)
		h.made[id] = true
	}
	built := time.Now()
	if warm && !h.warmed[id] {
		h.long("agent", "warm", id)
		h.warmed[id] = true
	}
	h.t.Logf("%s was built in %v and warm after %v", id, built.Sub(begin).Round(time.Second), time.Since(built).Round(time.Second))
}
