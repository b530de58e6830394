package test_test

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// TestPromise10NotRoot tests that users other than root get an error of one sentence, and that nothing is created.
func TestPromise10NotRoot(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	// The directory of the binary may be inaccessible to other users, so copy the binary.
	data, err := os.ReadFile(h.bin)
	if err != nil {
		t.Fatal(err)
	}
	bin, dir := filepath.Join(h.dir, "caisson"), filepath.Join(h.dir, "theirs")
	if err := os.WriteFile(bin, data, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, chmod := range []error{os.Chmod(h.dir, 0o755), os.Mkdir(dir, 0o777), os.Chmod(dir, 0o777), os.Chmod(h.configFile(), 0o644)} {
		if chmod != nil {
			t.Fatal(chmod)
		}
	}
	for _, args := range [][]string{{"exec", "--rm", "host", "--", "true"}, {"sandbox", "ls"}, {"serve"}} {
		cmd := exec.Command(bin, args...)
		cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/bin:/bin", "CAISSON_DATA=" + filepath.Join(dir, "d"), "CAISSON_CONFIG=" + h.configFile()}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
		out, err := cmd.CombinedOutput()
		if err == nil || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), "root") {
			t.Errorf("caisson %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("%d entries were made, %v", len(entries), err)
	}
}

// TestPromise10SnapshotThatDoesNotFit tests that only the files of a snapshot are restored if the host does not fit it,
// because it depends on another processor or build. The sandbox and an event report this. A restore that may crash is
// never tried, and a loss is always reported.
func TestPromise10SnapshotThatDoesNotFit(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ok("sandbox", "create", "--name", "a", "host")
	h.sh("a", "echo kept > /root/file")
	h.count("a")
	h.ok("sandbox", "snapshot", "--name", "snap", "a")
	h.ok("sandbox", "pause", "a")
	for field, words := range map[string]string{"cpu": "processor", "build": "build", "rootfs": "image", "platform": "platform"} {
		name := "for-" + field
		h.ok("sandbox", "fork", "--name", name, "snap")
		h.ok("sandbox", "pause", name)
		tamper(t, filepath.Join(h.data, "sandboxes", string(h.show(name).ID), "pause", "depends.json"), field)
		r := h.run("sandbox", "resume", name)
		sb := h.show(name)
		if r.code != 0 || sb.State != caisson.Running || !strings.Contains(sb.Reason, words) || !strings.Contains(sb.Reason, "files only") {
			t.Errorf("another %s: %s (%s); %v", field, sb.State, sb.Reason, r)
			continue
		}
		if got := h.sh(name, "cat /root/file; test -e /tmp/count && echo memory; true"); got != "kept" {
			t.Errorf("another %s: the sandbox has %q", field, got)
		}
		poll.Until(t, settle, func() bool { return strings.Contains(h.ok("events", "--for", "100ms"), words) })
	}
	// The same for a fork.
	id := shows[caisson.Snapshot](h, "snapshot", "show", "snap").ID
	tamper(t, filepath.Join(h.data, "snapshots", string(id), "depends.json"), "cpu")
	h.ok("sandbox", "fork", "--name", "fork", "snap")
	if sb := h.show("fork"); !strings.Contains(sb.Reason, "processor") {
		t.Errorf("the fork says %q", sb.Reason)
	}
	h.ok("sandbox", "resume", "a")
	h.counted("a")
}

// tamper changes one field of a file that records the dependencies of a checkpoint.
func tamper(t *testing.T, file, field string) {
	t.Helper()
	var depends map[string]any
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &depends)
	}
	if err != nil || depends[field] == nil {
		t.Fatalf("%s has no %s: %s, %v", file, field, data, err)
	}
	depends[field] = "another"
	if data, err = json.Marshal(depends); err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestPromise10DamagedCheckpoint tests that a damaged checkpoint is soon reported as an error, and that the sandbox
// stays paused.
func TestPromise10DamagedCheckpoint(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, damage := range []func(path string, size int64) error{
		func(path string, size int64) error { return os.Truncate(path, size/2) },
		func(path string, _ int64) error { return os.Truncate(path, 0) },
		func(path string, _ int64) error { return os.Remove(path) },
	} {
		for _, image := range []string{"pages.img", "checkpoint.img"} {
			id := h.ok("sandbox", "create", "host")
			h.count(id)
			h.ok("sandbox", "pause", id)
			path := filepath.Join(h.data, "sandboxes", id, "pause", image)
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(path, info.Size()); err != nil {
				t.Fatal(err)
			}
			r := h.run("sandbox", "resume", id)
			if r.code == 0 {
				t.Errorf("resumed from a damaged %s: %v", image, r)
			}
			if sb := h.show(id); sb.State != caisson.Paused {
				t.Errorf("after a damaged %s the sandbox is %s (%s)", image, sb.State, sb.Reason)
			}
			poll.Until(t, settle, func() bool { return len(h.sandboxProcesses()) == 0 })
			h.ok("sandbox", "rm", id)
		}
	}
}

// TestPromise10SettingsAreRefused tests that settings that would expose the daemon to a network unprotected, or refer
// to missing things, are rejected before the daemon starts.
func TestPromise10SettingsAreRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, tt := range []struct{ config, words string }{
		{"listen: 0.0.0.0:7443", "tlsCert"},
		{"listen: ':7443'", "tlsCert"},
		{"listen: '[::]:7443'", "tlsCert"},
		{"listen: example.com:7443", "tlsCert"},
		{"platform: kvm", "platform"},
		{"platform: nonsense", "platform"},
		{"tlsCert: /none/such.pem", "tlsKey"},
		{"listem: 127.0.0.1:7443", "listem"},
		{"limits: {maxSandboxes: 0}", "limits.maxSandboxes"},
		{"dataDir: ''\nlogLevel: loud", "logLevel"},
	} {
		h.configure(tt.config)
		for _, args := range [][]string{{"serve"}, {"sandbox", "ls"}} {
			if r := h.run(args...); r.code != 2 || !strings.Contains(r.stderr, tt.words) {
				t.Errorf("%s: %v", tt.config, r)
			}
		}
	}
	h.configure("logLevel: info")
	if _, err := os.Stat(filepath.Join(h.data, "caisson.sock")); err == nil && h.daemonPID() == 0 {
		t.Error("there is a socket and no daemon")
	}
}

// TestPromise10TokensAndTheSocket tests that nothing is served over TCP without a token, and that a token has fewer
// rights than the socket.
func TestPromise10TokensAndTheSocket(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	listener := freeAddress(t)
	h.configure("listen: " + listener)
	h.serve()
	h.ok("sandbox", "create", "--name", "mine", "host")
	for _, path := range []string{"/api/v1/sandboxes", "/api/v1/info", "/api/v1/sandboxes/mine/exec/stream", "/api/v1/events", "/api/v1/tokens"} {
		for _, token := range []string{"", "Bearer ", "Bearer wrong", "Basic bG9jYWw6"} {
			req, err := http.NewRequest(http.MethodGet, "http://"+listener+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if token != "" {
				req.Header.Set("Authorization", token)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusNotFound {
				t.Errorf("%s with %q: %s", path, token, resp.Status)
			}
		}
	}
	secret := h.ok("token", "create", "ci")
	other := h.ok("token", "create", "other", "--account", "team-b")
	if info, err := os.Stat(h.socket()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info, err)
	}
	as := func(token string) *host {
		remote := *h
		remote.env = []string{"PATH=/usr/bin:/bin", "CAISSON_CONFIG=" + h.configFile(), "CAISSON_DATA=" + h.data, "CAISSON_HOST=http://" + listener, "CAISSON_TOKEN=" + token}
		return &remote
	}
	if got := as(secret).ok("exec", "mine", "--", "echo", "from afar"); got != "from afar" {
		t.Errorf("exec over TCP: %q", got)
	}
	as(secret).fails(5, "", "token", "create", "more")
	as(secret).fails(5, "", "df")
	as(secret).fails(2, "a daemon elsewhere", "sandbox", "create", "--mount", h.dir+":/x", "host")
	// Objects of another account are not found.
	for _, args := range [][]string{{"exec", "mine", "--", "true"}, {"sandbox", "rm", "mine"}, {"sandbox", "show", "mine"}, {"sandbox", "files", "ls", "mine:/"}, {"sandbox", "fork", "mine"}} {
		as(other).fails(3, "", args...)
	}
	if got := as(other).ok("sandbox", "ls", "-q"); got != "" {
		t.Errorf("another account sees %q", got)
	}
	theirs := as(other).ok("sandbox", "create", "host")
	h.fails(3, "", "sandbox", "show", theirs)
	as(other).ok("sandbox", "rm", theirs)
	for id := range strings.FieldsSeq(h.ok("token", "ls", "-q")) {
		h.ok("token", "rm", id)
	}
	as(secret).fails(5, "", "sandbox", "ls")
}
