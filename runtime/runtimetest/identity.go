package runtimetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// identityTests test the environment, the working directory, the user and the host name of processes.
var identityTests = []test{
	{"Env", testEnv},
	{"Workdir", testWorkdir},
	{"User", testUser},
	{"UnknownUser", testUnknownUser},
	{"Hostname", testHostname},
}

// testEnv checks that a process gets the variables that it was started with, and none of those of the runtime or of the command.
func testEnv(t *testing.T, s *suite) {
	b := s.newBox(t)
	b.spec.Command, b.spec.Env = s.argv("sleep", "1h"), []string{"OF_COMMAND=1"}
	b.create()
	want := []string{"A=1", "B=with = and spaces", "EMPTY=", "LINE=ü"}
	r := b.finish(b.exec(caisson.RuntimeExec{Command: []string{"env"}, Env: want}))
	got := strings.Split(strings.TrimSuffix(r.stdout, "\n"), "\n")
	for _, kv := range want {
		if !slices.Contains(got, kv) {
			t.Errorf("%q is not in the environment %q", kv, got)
		}
	}
	// A runtime may add common variables. It must not pass on its own environment, or the environment of the sandbox's command.
	allowed := []string{"PATH", "HOME", "TERM", "HOSTNAME", "PWD", "USER", "SHELL", "LOGNAME"}
	for _, kv := range got {
		if name, _, _ := strings.Cut(kv, "="); kv != "" && !slices.Contains(want, kv) && !slices.Contains(allowed, name) {
			t.Errorf("%q is in the environment", kv)
		}
	}
}

// testWorkdir starts processes in several working directories that create a file with a relative path.
func testWorkdir(t *testing.T, s *suite) {
	b := s.create(t)
	for in, want := range map[string]string{"": "/here", "/": "/here", "/lower/tree": "/lower/tree/here", "/shared/": "/shared/here"} {
		r := b.finish(b.exec(caisson.RuntimeExec{Command: []string{"fill", "here", "1"}, Workdir: in}))
		if _, err := b.files().StatFile(b.ctx(), want); err != nil || !r.status.Success() {
			t.Errorf("with working directory %q there is no %s: %v; %+v", in, want, err, r)
		}
	}
}

// testUser starts processes as several users, which create files, and checks the owners of the files.
func testUser(t *testing.T, s *suite) {
	b := s.create(t)
	i := 0
	for user, want := range map[string]string{
		"":           "0 0",
		"0":          "0 0",
		"root":       "0 0",
		"5:6":        "5 6",
		"1234":       "1234 1235", // a uid in passwd: the group is the user's group there
		"4321":       "4321 0",    // a uid that is not in passwd: the group is 0
		"agent":      "1234 1235",
		"agent:team": "1234 1236",
		"agent:7":    "1234 7",
		"8:team":     "8 1236",
	} {
		i++
		name := fmt.Sprintf("/shared/%d", i)
		r := b.finish(b.exec(caisson.RuntimeExec{Command: []string{"fill", name, "1"}, User: user}))
		if !r.status.Success() {
			t.Errorf("as user %q: %+v", user, r)
		} else if got := b.output("stat", name); got != "file 0644 "+want+" 1" {
			t.Errorf("as user %q a file became %q, want it to be of %q", user, got, want)
		}
	}
}

// testUnknownUser calls Exec with users that do not exist. A runtime may detect that in Exec, or inside the sandbox; the command
// must not run.
func testUnknownUser(t *testing.T, s *suite) {
	b := s.create(t)
	for _, user := range []string{"nobody-here", "agent:nobody-here", "nobody-here:team", "-1", "65536", ":", "agent:"} {
		p, err := s.Runtime.Exec(b.ctx(), b.id, caisson.RuntimeExec{Command: s.argv("echo", "ran"), User: user})
		if err != nil {
			wantKind(t, "Exec as "+user, err, caisson.Invalid)
			continue
		}
		if r := b.finish(p); r.status.Success() || r.stdout != "" {
			t.Errorf("as user %q: %+v", user, r)
		}
		p.Close()
	}
}

func testHostname(t *testing.T, s *suite) {
	b := s.create(t)
	if got := hostname(b); got != b.spec.Hostname {
		t.Errorf("host name %q, want %q", got, b.spec.Hostname)
	}
}

// hostname returns the host name inside the sandbox.
func hostname(b *box) string {
	b.t.Helper()
	return strings.TrimSpace(b.read("/proc/sys/kernel/hostname"))
}
