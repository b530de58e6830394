package sshserver

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// racingProcesses are the processes of a sandbox in which process 2 starts process 3 while it is stopped: the second list has no process 3
// yet, and the first one fails.
type racingProcesses struct {
	caisson.Processes
	lists  int
	killed map[int]bool
}

func (r *racingProcesses) ListProcesses(context.Context, string) ([]caisson.ProcessInfo, error) {
	r.lists++
	list := []caisson.ProcessInfo{{PID: 1}, {PID: 2, PPID: 1}, {PID: 3, PPID: 2}, {PID: 4, PPID: 1}}
	switch r.lists {
	case 1:
		return nil, errors.New("the sandbox does not answer in time")
	case 2:
		return list[:2], nil
	}
	return list, nil
}

func (r *racingProcesses) Kill(_ context.Context, _ string, pid, signal int) error {
	if signal == int(unix.SIGKILL) {
		r.killed[pid] = true
	}
	return nil
}

// TestKillTree tests that a process is killed with a child that it starts while it is stopped, although a list of processes fails,
// and that no other process is killed.
func TestKillTree(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	r := &racingProcesses{killed: map[int]bool{}}
	processTree{r, "web"}.kill(ended, 2)
	if len(r.killed) != 2 || !r.killed[2] || !r.killed[3] {
		t.Errorf("killed are %v, want 2 and 3", r.killed)
	}
}
