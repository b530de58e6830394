package runtimetest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

var limitTests = []test{
	{"LimitPIDs", testLimitPIDs},
	{"LimitDisk", testLimitDisk},
	{"LimitMemory", testLimitMemory},
}

// testLimitPIDs starts more processes than the sandbox's limit permits.
func testLimitPIDs(t *testing.T, s *suite) {
	const limit = 64
	b := s.newBox(t)
	b.spec.Resources.PIDs = limit
	b.create()
	n, err := strconv.Atoi(b.output("spawn", "200"))
	if err != nil || n < 1 || n >= limit {
		t.Errorf("with a limit of %d a process could start %d children, %v", limit, n, err)
	}
	b.wantAlive()
}

// testLimitDisk writes more data than the sandbox's limit on disk space permits.
func testLimitDisk(t *testing.T, s *suite) {
	const limit = 16 << 20
	b := s.newBox(t)
	b.spec.Resources.Disk = limit
	b.create()
	r := b.run("fill", "/big", fmt.Sprint(4*limit))
	written, why, _ := strings.Cut(strings.TrimSpace(r.stdout), " ")
	n, err := strconv.Atoi(written)
	if err != nil || n > limit || n < limit/2 || r.status.Success() || why != "no space left on device" {
		t.Errorf("with a limit of %d bytes fill gave %+v", limit, r)
	}
	if w, ok := s.Runtime.(interface {
		Written(caisson.ID) (caisson.Size, error)
	}); ok {
		if took, err := w.Written(b.id); err != nil || took < caisson.Size(n) || took > limit+limit/4 {
			t.Errorf("%d bytes take %v of the host's disk, %v", n, took, err)
		}
	}
	must(t, "remove", b.files().RemoveFile(b.ctx(), "/big", false))
	if r := b.run("fill", "/small", fmt.Sprint(limit/4)); !r.status.Success() {
		t.Errorf("with space again fill gave %+v", r)
	}
}

// testLimitMemory allocates more memory than the sandbox's limit permits. A runtime may kill the process or the whole sandbox,
// but the exit status must contain the reason.
func testLimitMemory(t *testing.T, s *suite) {
	const limit = 256 << 20
	b := s.newBox(t)
	b.spec.Command, b.spec.Resources.Memory = s.argv("sleep", "1h"), limit
	b.create()
	p := b.exec(caisson.RuntimeExec{Command: []string{"alloc", fmt.Sprint(4 * limit)}, Stdin: true})
	r := b.finish(p)
	if r.status.Success() || r.stdout != "" {
		t.Fatalf("with a limit of %d bytes alloc gave %+v", limit, r)
	}
	reasons := r.status.Reason
	select {
	case <-s.Runtime.Done(b.id):
		status, err := s.Runtime.WaitCommand(b.ctx(), b.id)
		if err != nil {
			t.Errorf("WaitCommand: %v", err)
		}
		reasons += "; " + status.Reason
	default:
	}
	if !strings.Contains(reasons, "memory") {
		t.Errorf("the reason given is %q, want something about memory; the process %+v", reasons, r.status)
	}
}
