package drive

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

func TestPrepare(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	put(t, dir, map[string]string{"old/a": "x", "target": "kept"})
	must(t, os.Symlink("target", filepath.Join(dir, "link")))
	work := filepath.Join(dir, "deep/work")
	must(t, prepare(&task.Task{
		Workdir: work, Remove: []string{filepath.Join(dir, "old"), filepath.Join(dir, "none")},
		Files: []caisson.SeedFile{{Path: filepath.Join(dir, "new/b"), Data: "data", Mode: 0o600}, {Path: filepath.Join(dir, "link"), Data: "mine"}},
	}))
	if _, err := os.Stat(filepath.Join(dir, "old")); !os.IsNotExist(err) {
		t.Error(err)
	}
	info, err := os.Stat(filepath.Join(dir, "new/b"))
	must(t, err)
	if info.Mode() != 0o600 || info.Size() != 4 {
		t.Errorf("%v", info.Mode())
	}
	for name, want := range map[string]string{"target": "kept", "link": "mine"} { // the link was replaced, not followed
		if b, err := os.ReadFile(filepath.Join(dir, name)); string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if cwd, err := os.Getwd(); cwd != work {
		t.Errorf("in %s, %v", cwd, err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*/.caisson-*"))
	if len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := prepare(&task.Task{Workdir: work, Remove: []string{"/"}}); err == nil {
		t.Error("/ was removed")
	}
}

// TestRecall: earlier messages are written outside of the workspace, for the agent to read.
func TestRecall(t *testing.T) {
	top := t.TempDir()
	work, home, tmp := filepath.Join(top, "work"), filepath.Join(top, "home"), filepath.Join(top, "tmp")
	must(t, os.Mkdir(work, 0o755))
	must(t, os.Symlink(work, filepath.Join(top, "link")))
	t.Setenv("TMPDIR", tmp)
	history := []caisson.Message{{Role: "user", Content: "hi"}, {Role: "assistant", Content: "hello\n"}}
	for _, c := range []struct{ home, want string }{
		{home, home}, {"", tmp}, {work, tmp}, {filepath.Join(work, "me"), tmp}, {filepath.Join(top, "link"), tmp}, {"/proc/none", tmp},
	} {
		t.Setenv("HOME", c.home)
		dir := filepath.Join(c.want, ".caisson")
		k := &task.Task{Workdir: work, Track: work, Prompt: "go on", History: history}
		tr := newTracker(k)
		must(t, writeHistory(k))
		if first, rest, _ := strings.Cut(k.Prompt, "\n\n"); !strings.Contains(first, dir+"/conversation.md") || rest != "go on" {
			t.Errorf("home %q: prompt %q", c.home, k.Prompt)
		}
		b, err := os.ReadFile(filepath.Join(dir, "conversation.md"))
		if string(b) != "## user\n\nhi\n\n## assistant\n\nhello\n\n" {
			t.Errorf("home %q: %q, %v", c.home, b, err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "messages.json")); !strings.Contains(string(b), `"role": "assistant"`) {
			t.Errorf("home %q: %q, %v", c.home, b, err)
		}
		if l, _ := tr.changes(); len(l.Changes) > 0 {
			t.Errorf("home %q: the workspace has changed: %+v", c.home, l.Changes)
		}
		must(t, os.RemoveAll(dir))
	}
	t.Setenv("HOME", home)
	plain := &task.Task{Workdir: work, Prompt: "go"}
	must(t, writeHistory(plain))
	if _, err := os.Stat(filepath.Join(home, ".caisson")); plain.Prompt != "go" || !os.IsNotExist(err) {
		t.Errorf("prompt %q, %v", plain.Prompt, err)
	}
	must(t, os.Symlink(work, filepath.Join(home, ".caisson")))
	if err := writeHistory(&task.Task{Workdir: work, Prompt: "go on", History: history}); err == nil {
		t.Error("written through a link")
	}
}

func TestCommand(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "not/there"))
	for _, c := range []struct {
		by      string
		command []string
		want    []string
		stdin   string
	}{
		{"", []string{"a", "-p"}, []string{"a", "-p", "P {prompt}"}, ""},
		{"argument", []string{"a", "--prompt={prompt}", "-x"}, []string{"a", "--prompt=P {prompt}", "-x"}, ""},
		{"stdin", []string{"a", "{prompt}"}, []string{"a", "{prompt}"}, "P {prompt}"},
		{"file", []string{"a", "@{prompt}"}, nil, ""},
		{"file", []string{"a"}, nil, ""},
	} {
		args, stdin, remove, err := CommandWithPrompt(&task.Task{Command: c.command, PromptMode: c.by, Prompt: "P {prompt}"})
		must(t, err)
		if c.by == "file" {
			path := strings.TrimPrefix(args[1], "@")
			b, err := os.ReadFile(path)
			info, _ := os.Stat(path)
			if string(b) != "P {prompt}" || info.Mode() != 0o600 {
				t.Errorf("%q, %v, %v", b, info.Mode(), err)
			}
			remove()
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				t.Error("the prompt's file is left")
			}
			continue
		}
		if d := cmp.Diff(c.want, args); d != "" || stdin != c.stdin {
			t.Errorf("%s: %q %s", c.by, stdin, d)
		}
		remove()
	}
	for _, k := range []*task.Task{{Prompt: "a\x00"}, {Prompt: "a\x00", PromptMode: caisson.PromptArgument}, {PromptMode: "mail"}} {
		if _, _, _, err := CommandWithPrompt(k); err == nil {
			t.Errorf("%+v is fine", k)
		}
	}
}

func TestReady(t *testing.T) {
	var asked atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ready" || r.Host == "" || asked.Add(1) < 4 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer srv.Close()
	must(t, waitReady(t.Context(), srv.URL+"/ready", 10*time.Second))
	if asked.Load() != 4 {
		t.Errorf("asked %d times", asked.Load())
	}
	err := waitReady(t.Context(), srv.URL+"/other", 3*time.Second)
	if err == nil || !strings.Contains(err.Error(), "not ready within 3s") || !strings.Contains(err.Error(), "503") {
		t.Error(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and does not answer
	must(t, err)
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go cancel()
	if err := waitReady(ctx, "http://"+silent.Addr().String()+"/", time.Minute); err == nil {
		t.Error("ready")
	}
	// If ctx's deadline is the earlier one, ctx has ended when ready returns.
	for offset := range 8 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond+time.Duration(offset)*250*time.Microsecond)
		if err := waitReady(ctx, "http://127.0.0.1:1/", time.Minute); err == nil || ctx.Err() == nil {
			t.Errorf("returned %v, and the context has %v", err, ctx.Err())
		}
		cancel()
	}
	for _, url := range []string{"", "https://127.0.0.1:1/", "http://127.0.0.1/", "http://127.0.0.1:1/a b", "http://127.0.0.1:1/\r\nX: y"} {
		if err := waitReady(t.Context(), url, time.Second); err == nil || !strings.Contains(err.Error(), "write http://") {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func TestAwaitRefuses(t *testing.T) {
	for _, args := range [][]string{nil, {"http://127.0.0.1:1/"}, {"https://127.0.0.1:1/", "true"}, {"127.0.0.1", "true"}} {
		if err := ExecWhenReady(args); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}
