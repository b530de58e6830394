package guestd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// run runs the binary and returns its output and its exit code.
func run(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs strings.Builder
	cmd := exec.CommandContext(testContext(t), helper, args...)
	if env == nil {
		env = []string{} // not that of the test
	}
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.Dir = env, &out, &errs, "/"
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestRunBecomesTheCommand(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "plain")
	os.WriteFile(script, []byte("no program"), 0o644)
	os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\necho tool \"$@\"\n"), 0o755)
	os.WriteFile(filepath.Join(dir, "broken"), []byte("\x7fELF"), 0o755)
	env := []string{"PATH=" + dir + ":/usr/bin:/bin", "X=1"}
	for _, row := range []struct {
		args   []string
		stdout string
		stderr string // part of it
		code   int
	}{
		{[]string{"--", "tool", "a", "--detach"}, "tool a --detach\n", "", 0},
		{[]string{"tool", "b"}, "tool b\n", "", 0},
		{[]string{"--cwd", dir, "--", "./tool"}, "tool\n", "", 0},
		{[]string{"--cwd=" + dir, "--", "pwd"}, dir + "\n", "", 0},
		{[]string{"--", "sh", "-c", "exit 42"}, "", "", 42},
		{[]string{"--", "sh", "-c", "echo $X"}, "1\n", "", 0},
		{[]string{"--", "nosuch"}, "", "nosuch: command not found", 127},
		{[]string{"--", dir + "/nosuch"}, "", "no such file", 127},
		{[]string{"--", script + "/x"}, "", "not a directory", 127},
		{[]string{"--", "plain"}, "", "permission denied", 126},
		{[]string{"--", script}, "", "permission denied", 126},
		{[]string{"--", dir}, "", "permission denied", 126},
		{[]string{"--", "broken"}, "", "exec format error", 126},
		{[]string{"--cwd", "/nosuch", "--", "true"}, "", "cannot change to directory /nosuch", 125},
		{[]string{"--user", "nobody-knows", "--", "true"}, "", "no user", 125},
		{[]string{"--user", "0:nogroup-knows", "--", "true"}, "", "no group", 125},
		{[]string{"--bogus", "--", "true"}, "", "no option", 125},
		{[]string{"--log", "x", "--", "true"}, "", "--log is for --detach", 125},
		{[]string{"--cwd"}, "", "needs a value", 125},
		{[]string{"--"}, "", "no command", 125},
		{[]string{"--", ""}, "", "no command", 125},
	} {
		stdout, stderr, code := run(t, env, append([]string{"run"}, row.args...)...)
		if stdout != row.stdout || !strings.Contains(stderr, row.stderr) || code != row.code || (row.stderr == "" && stderr != "") {
			t.Errorf("%q: %q, %q, %d", row.args, stdout, stderr, code)
		}
	}
	if out, _, _ := run(t, nil, "run", "--", "sh", "-c", "echo $PATH $HOME"); !strings.HasPrefix(out, defaultPath+" /") {
		t.Errorf("without an environment: %q", out)
	}
}

func TestRunAsUser(t *testing.T) {
	testneed.Root(t)
	const script = `echo $(id -u) $(id -g) $(id -G) $HOME $(grep -c "^CapEff:.0000000000000000" /proc/self/status)`
	for user, want := range map[string]string{
		"54321":       "54321 0 0 / 1\n",
		"54321:12345": "54321 12345 12345 / 1\n",
		"nobody":      "65534 65534 65534 /nonexistent 1\n",
	} {
		out, errs, code := run(t, nil, "run", "--user", user, "--", "sh", "-c", script)
		if out != want || code != 0 {
			t.Errorf("%s: %q, %q, %d; want %q", user, out, errs, code, want)
		}
	}
	if out, _, _ := run(t, []string{"HOME=/mine"}, "run", "--user", "nobody", "--", "sh", "-c", "echo $HOME"); out != "/mine\n" {
		t.Errorf("HOME became %q", out)
	}
	// Only a privileged user can change identities.
	cmd := exec.Command(helper, "run", "--user", "0", "--", "true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUID, Gid: otherUID}}
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != exitUsage || !strings.Contains(string(out), "cannot become") {
		t.Errorf("became root: %v, %s", err, out)
	}
}

func TestRunDetached(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	os.WriteFile(log, []byte("before\n"), 0o600)
	out, errs, code := run(t, nil, "run", "--detach", "--log", log, "--", "sh", "-c",
		"echo out; echo err >&2; cat; cut -d' ' -f1,6 /proc/$$/stat; read x")
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || code != 0 {
		t.Fatalf("%q, %q, %d", out, errs, code)
	}
	want := fmt.Sprintf("before\nout\nerr\n%d %d\n", pid, pid) // the command leads a new session
	poll(t, "the log is complete", func() bool {
		b, _ := os.ReadFile(log)
		return string(b) == want
	})
	if _, errs, code := run(t, nil, "run", "--detach", "--", "nosuch"); code != 127 || !strings.Contains(errs, "not found") {
		t.Errorf("unknown command: %q, %d", errs, code)
	}
	if _, errs, code := run(t, nil, "run", "--detach", "--log", "/no/such/log", "--", "true"); code != 125 || !strings.Contains(errs, "log") {
		t.Errorf("no log: %q, %d", errs, code)
	}
}

func TestResolveUser(t *testing.T) {
	etc := fstest.MapFS{
		"passwd": {Data: []byte("root:x:0:0:root:/root:/bin/sh\n# comment\nbroken\nneg:x:-1:5::/:\nbig:x:4294967295:5::/:\n" +
			strings.Repeat("x", 200_000) + "\nann:x:1000:100:Ann:/home/ann:/bin/sh\n1234:x:77:77::/odd:/bin/sh")},
		"group": {Data: []byte("root:x:0:\nusers:x:100:ann\nwheel:x:10:root,ann\naudio:x:29:anna,ann\nodd:x:zz:ann\n")},
	}
	for spec, want := range map[string]*identity{
		"root":        {0, 0, []int{0, 10}, "/root"},
		"ann":         {1000, 100, []int{100, 10, 29}, "/home/ann"},
		"1000":        {1000, 100, []int{100, 10, 29}, "/home/ann"},
		"ann:audio":   {1000, 29, []int{29}, "/home/ann"},
		"ann:5":       {1000, 5, []int{5}, "/home/ann"},
		"4000":        {4000, 0, []int{0}, "/"},
		"":            nil,
		":5":          nil,
		"ann:":        nil,
		"ann:none":    nil,
		"bob":         nil,
		"neg":         nil,
		"big":         nil,
		"4294967295":  nil,
		"-1":          nil,
		"99999999999": nil,
	} {
		got, err := resolveUser(etc, spec)
		if want == nil {
			if caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != "user" {
				t.Errorf("%q: %+v, %v", spec, got, err)
			}
			continue
		}
		if err != nil || got.uid != want.uid || got.gid != want.gid || got.home != want.home || !slices.Equal(got.groups, want.groups) {
			t.Errorf("%q: %+v, %v; want %+v", spec, got, err, want)
		}
	}
	if id, err := resolveUser(fstest.MapFS{}, "7:8"); err != nil || id.uid != 7 || id.gid != 8 {
		t.Errorf("without files: %+v, %v", id, err)
	}
}

func FuzzResolveUser(f *testing.F) {
	f.Add("ann:x:1000:100::/:\n", "g:x:5:ann\n", "ann:g")
	f.Fuzz(func(t *testing.T, passwd, group, spec string) {
		id, err := resolveUser(fstest.MapFS{"passwd": {Data: []byte(passwd)}, "group": {Data: []byte(group)}}, spec)
		if err == nil && (id.uid < 0 || id.gid < 0 || id.uid > maxID || id.gid > maxID) {
			t.Fatalf("%+v", id)
		}
	})
}
