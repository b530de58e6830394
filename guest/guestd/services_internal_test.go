package guestd

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/service"
)

// output is the output of a service.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// startShell starts a script as a service of this process's user.
func startShell(t *testing.T, id, script string, out *output) *serviceProcess {
	t.Helper()
	p, err := startService(caisson.Service{
		ID: id, Command: []string{"sh", "-c", script}, User: fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()), Cwd: "/", Env: map[string]string{"X": "1"},
	}, out)
	if err != nil {
		t.Fatal(err)
	}
	sp := p.(*serviceProcess)
	t.Cleanup(func() { sp.Kill(); <-sp.Done() })
	return sp
}

// waitDone waits until a service has ended, and returns how.
func waitDone(t *testing.T, p *serviceProcess) caisson.ExitStatus {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Fatal("the service has not ended")
	}
	return p.Exit()
}

func TestServiceProcess(t *testing.T) {
	t.Parallel()
	id := "test-" + strconv.Itoa(os.Getpid())
	var out output
	p := startShell(t, id, `pwd; echo $X $CAISSON_SERVICE $PATH >&2; exit 3`, &out)
	if exit := waitDone(t, p); exit.Code != 3 || out.String() != "/\n1 "+id+" "+defaultPath+"\n" {
		t.Errorf("%+v, %q", exit, out.String())
	}
	// A flood does not hold the service.
	p = startShell(t, id, `head -c 50000000 /dev/zero`, &out)
	if exit := waitDone(t, p); !exit.Success() {
		t.Errorf("%+v", exit)
	}
	for _, command := range []string{"/no/such/program", "no-such-program", "/etc", "/etc/passwd"} {
		_, err := startService(caisson.Service{ID: id, Command: []string{command}, User: strconv.Itoa(os.Getuid())}, &out)
		if err == nil || !strings.HasPrefix(err.Error(), command+": ") {
			t.Errorf("%s: %v", command, err)
		}
	}
	if _, err := startService(caisson.Service{ID: id, Command: []string{"sh"}, User: "nobody-of-this-name"}, &out); caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("an unknown user: %v", err)
	}
}

// TestServiceTree ends services that have left their session, and shows that nothing of them is left.
func TestServiceTree(t *testing.T) {
	t.Parallel()
	id := "tree-" + strconv.Itoa(os.Getpid())
	other := startShell(t, id+"x", "exec sleep 1000", &output{})
	for _, how := range []string{"exit", "terminated", "killed"} {
		var out output
		script := `setsid sh -c 'trap "" TERM; echo $$; exec sleep 1000' & sh -c 'echo $$; exec sleep 1000' & `
		if how == "exit" {
			script = "sleep 1000 & echo $!; setsid sleep 1000 & echo $!; exit 0"
		} else {
			script += "wait"
		}
		p := startShell(t, id, script, &out)
		var pids []string
		poll(t, "a service", func() bool { pids = strings.Fields(out.String()); return len(pids) == 2 })
		switch how {
		case "terminated":
			p.Terminate()
		case "killed":
			p.Kill()
		}
		waitDone(t, p)
		for _, text := range pids {
			pid, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			poll(t, "a service", func() bool { return unix.Kill(pid, 0) == unix.ESRCH || zombie(pid) })
		}
	}
	if unix.Kill(other.PID(), 0) != nil || zombie(other.PID()) {
		t.Error("another service has ended too")
	}
}

// zombie reports whether a process has ended.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(stat, []byte(") Z "))
}

func startService(s caisson.Service, out *output) (service.Process, error) {
	return serviceHost{}.Start(s, out)
}
