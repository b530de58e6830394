package worker_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/worker"
)

// parentOf is the environment variable that makes a test binary run a job until it is killed. Its value is the path of the
// job's program.
const parentOf = "CAISSON_TEST_PARENT_OF"

func parent(exe string) int {
	r, err := worker.New(worker.Config{Exe: exe, UIDBase: caisson.LayerUIDBase, WorkUID: worker.DefaultUID})
	if err == nil {
		req := worker.Request{Job: "hold", Files: []*os.File{os.NewFile(3, "held")}, Network: os.Args[1] == "network"}
		if os.Args[1] == "programs" {
			req.Job, req.Programs = "brood", true
			if req.Root, err = os.Open(os.Args[2]); err != nil {
				return 1
			}
		}
		err = r.Run(context.Background(), req, nil)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func TestPromise7JobsDieWithTheirParent(t *testing.T) {
	newRunner(t)
	for _, kind := range []string{"sealed", "network", "programs"} {
		t.Run(kind, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			path := self
			if path == "/proc/self/exe" {
				path = os.Args[0]
			}
			cmd := exec.Command(path, kind, t.TempDir())
			cmd.Env = []string{parentOf + "=" + self}
			cmd.ExtraFiles = []*os.File{w}
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			w.Close()
			if _, err := io.ReadFull(r, make([]byte, 1)); err != nil {
				t.Fatalf("the job did not start: %v", err)
			}
			cmd.Process.Kill()
			cmd.Wait()
			// The pipe reaches end of file when the last process that has its other end has exited.
			if err := r.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if n, err := r.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("the job lives on: %d, %v", n, err)
			}
		})
	}
}

func TestErrorsKeepTheirKind(t *testing.T) {
	r := newRunner(t)
	tests := []struct {
		kind    string
		message string
		want    caisson.Kind
	}{
		{"not_found", "no such thing", caisson.NotFound},
		{"exhausted", "too much", caisson.Exhausted},
		{"invented", "x", caisson.Internal},
		{"invalid", "\x1b[31mred\u202e\n" + strings.Repeat("y", 1000), caisson.Invalid},
	}
	for _, tt := range tests {
		err := r.Run(t.Context(), worker.Request{Job: "fail", Args: map[string]string{"Kind": tt.kind, "Message": tt.message}}, nil)
		msg := caisson.MessageOf(err)
		if caisson.KindOf(err) != tt.want || strings.ContainsAny(msg, "\x1b\n\u202e") || len(msg) > 500 {
			t.Errorf("%s: %v", tt.kind, err)
		}
	}
}

func TestBreakdowns(t *testing.T) {
	r := newRunner(t)
	small := worker.Limits{CPU: time.Second, Memory: 128 << 20, Time: time.Minute}
	tests := []struct {
		job    string
		args   any
		limits worker.Limits
		want   caisson.Kind
	}{
		{"panic", nil, small, caisson.Internal},
		{"unknown", nil, small, caisson.Internal},
		{"long", nil, small, caisson.Internal},
		{"spin", nil, small, caisson.Exhausted},
		{"alloc", nil, worker.Limits{Memory: 128 << 20}, caisson.Exhausted},
		{"hang", nil, worker.Limits{Time: 200 * time.Millisecond}, caisson.Exhausted},
		{"raw", "", small, caisson.Internal},
		{"raw", "junk\n", small, caisson.Internal},
		{"raw", `{"result":true}`, small, caisson.Internal},
		{"raw", `{"result":"x","other":1}` + "\n", small, caisson.Internal},
		{"raw", `{"result":{"a":1}}` + "\n", small, caisson.Internal},
		{"raw", strings.Repeat("y", 900<<10), small, caisson.Internal},
		{"raw", strings.Repeat("{}\n", 200_000), small, caisson.Internal},
	}
	for i, tt := range tests {
		t.Run(fmt.Sprintf("%d %s", i, tt.job), func(t *testing.T) {
			t.Parallel()
			var got string
			err := r.Run(t.Context(), worker.Request{Job: tt.job, Args: tt.args, Limits: tt.limits}, &got)
			if err == nil || caisson.KindOf(err) != tt.want {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// The daemon is not dumpable, and its umask removes all rights of group and others.
func TestFromADaemon(t *testing.T) {
	r := newRunner(t)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	defer unix.Umask(unix.Umask(0o077))
	for _, network := range []bool{false, true} {
		var s string
		if err := r.Run(t.Context(), worker.Request{Job: "echo", Args: "a", Network: network}, &s); err != nil || s != "a" {
			t.Errorf("network %v: %q, %v", network, s, err)
		}
	}
}

func TestNothingIsLeft(t *testing.T) {
	r := newRunner(t)
	var wg sync.WaitGroup
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	runtime.GC()
	before := count()
	for range 20 {
		wg.Go(func() {
			var s string
			if err := r.Run(context.Background(), worker.Request{Job: "echo", Args: "a", Input: strings.NewReader("b")}, &s); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
