package test_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// TestScripts runs the scripts in testdata, which use the binary as users do. The commands of scripts in addition to
// testscript's own are
//
//	code N ARGS…        caisson ARGS… must end with exit code N
//	capture NAME FILE   sets a variable to the content of a file less the last newline; stdout is the last output
//	poll RE ARGS…       waits until caisson ARGS… writes a line that contains RE
//	enddaemon           stops the daemon of this script and waits until it has ended
func TestScripts(t *testing.T) {
	testneed.Root(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			h := newHost(env.T().(testing.TB)) // testscript documents that Run passes a *testing.T.
			env.Values[hostKey{}] = h
			for _, kv := range h.env {
				name, value, _ := strings.Cut(kv, "=")
				if name == "PATH" {
					value = h.dir + "/bin:" + env.Getenv("PATH")
				}
				env.Setenv(name, value)
			}
			env.Setenv("DIR", h.dir)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"capture": capture, "code": code, "poll": pollCommand, "enddaemon": endDaemon,
		},
	})
}

type hostKey struct{}

// capture sets a variable to the content of a file without the last newline: capture NAME FILE.
func capture(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv(args[0], strings.TrimSuffix(ts.ReadFile(args[1]), "\n"))
}

// code runs the command line and checks its exit code: code N ARGS….
func code(ts *testscript.TestScript, _ bool, args []string) {
	got := 0
	if err := ts.Exec("caisson", args[1:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("exit code %d, want %s", got, args[0])
	}
}

// pollCommand waits until the output of the command line contains a text: poll TEXT ARGS….
func pollCommand(ts *testscript.TestScript, _ bool, args []string) {
	h := ts.Value(hostKey{}).(*host)
	var r result
	defer func() { ts.Logf("%v", r) }()
	poll.Until(h.t, settle, func() bool {
		r = h.run(args[1:]...)
		return strings.Contains(r.stdout+r.stderr, args[0])
	})
}

func endDaemon(ts *testscript.TestScript, _ bool, _ []string) {
	h := ts.Value(hostKey{}).(*host)
	pid := h.daemonPID()
	ts.Check(os.NewSyscallError(fmt.Sprintf("end daemon %d", pid), syscall.Kill(pid, syscall.SIGTERM)))
	poll.Until(h.t, settle, func() bool { return h.daemonPID() == 0 })
}
