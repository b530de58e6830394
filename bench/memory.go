package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// settleTime is how long processes are idle before their memory is measured.
const settleTime = 3 * time.Second

// waitSettled waits for settleTime, or until ctx is done.
func waitSettled(ctx context.Context) error {
	select {
	case <-time.After(settleTime):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// idleSandboxes is the number of sandboxes of Caisson, and of those made with gVisor's command line, whose memory is measured.
const idleSandboxes = 20

// idleMemory compares the private memory of an idle sandbox of Caisson with that of one made with gVisor's command line. It
// counts all processes of a sandbox: the main process, the gofer and the processes that run guest code.
func (s *suite) idleMemory(ctx context.Context) error {
	var pairs [idleSandboxes]sandboxPair
	for i := range pairs {
		var err error
		if pairs[i], err = s.makePair(ctx); err != nil {
			return err
		}
	}
	if err := waitSettled(ctx); err != nil {
		return err
	}
	instance, err := os.ReadFile(filepath.Join(s.daemon.dir, "instance"))
	if err != nil {
		return err
	}
	var ours, theirs samples
	for _, p := range pairs {
		for group, to := range map[string]*samples{
			filepath.Join("/caisson", string(instance), p.caissonID): &ours, filepath.Join(s.baseline.cgroup, p.runscID): &theirs,
		} {
			mb, err := privateDirty(group)
			if err != nil {
				return err
			}
			*to = append(*to, mb)
		}
	}
	for _, p := range pairs {
		err = errors.Join(err, s.removePair(ctx, p))
	}
	s.add(newRow("sandbox.idle.memory", "MB", ours, "runsc run -detach, same init", theirs).atMostTimes(1.1))
	return err
}

// privateDirty returns the sum of the private dirty memory of the processes in a cgroup, in MB.
func privateDirty(group string) (mb float64, err error) {
	pids, err := cgroupProcesses(group)
	if err != nil {
		return 0, err
	}
	if len(pids) < 3 {
		return 0, fmt.Errorf("cgroup %s has %d processes, less than a sandbox", group, len(pids))
	}
	for _, pid := range pids {
		n, err := procField(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Private_Dirty:")
		if err != nil {
			return 0, err
		}
		mb += n
	}
	return mb, nil
}

// procField returns the value of the line name in a file in /proc, which is in kB, converted to MB.
func procField(path, name string) (mb float64, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name {
			kb, err := strconv.ParseFloat(f[1], 64)
			return kb * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, name)
}

// daemonMemory measures the anonymous memory of a newly started daemon and of its wire process, and the memory that 50
// idle sandboxes add.
func (s *suite) daemonMemory(ctx context.Context) (err error) {
	d, err := startDaemon(ctx, s.Config, "memory")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	engine, wire, err := d.anonymousMemory(ctx)
	if err != nil {
		return err
	}
	var ids [burst]string
	for i := range ids {
		if ids[i], err = d.create(ctx); err != nil {
			return err
		}
	}
	engine50, wire50, err := d.anonymousMemory(ctx)
	if err != nil {
		return err
	}
	more := (engine50 + wire50 - engine - wire) / burst
	s.add(newRow("daemon.memory", "MB", samples{engine + wire}, "", nil).under(20))
	s.add(newRow("daemon.memory.engine", "MB", samples{engine}, "", nil))
	s.add(newRow("daemon.memory.wire", "MB", samples{wire}, "", nil))
	s.add(newRow("daemon.memory.sandbox", "MB", samples{more}, "", nil).under(0.5))
	s.add(newRow("daemon.memory.sandbox.wire", "MB", samples{(wire50 - wire) / burst}, "", nil))
	return d.removeAll(ctx, ids[:])
}

// anonymousMemory waits for settleTime, and returns the anonymous memory of the daemon (engine) and of its wire process (wire),
// in MB.
func (d *daemon) anonymousMemory(ctx context.Context) (engine, wire float64, err error) {
	if err := waitSettled(ctx); err != nil {
		return 0, 0, err
	}
	if engine, err = procField(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid), "RssAnon:"); err != nil {
		return 0, 0, err
	}
	pid, err := d.wireProcess()
	if err != nil {
		return 0, 0, err
	}
	wire, err = procField(fmt.Sprintf("/proc/%d/status", pid), "RssAnon:")
	return engine, wire, err
}

// wireProcess returns the process id of the daemon's wire process.
func (d *daemon) wireProcess() (int, error) {
	children, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", d.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for _, file := range children {
		data, _ := os.ReadFile(file)
		for _, pid := range strings.Fields(string(data)) {
			if argv, _ := os.ReadFile("/proc/" + pid + "/cmdline"); bytes.HasPrefix(argv, []byte("caisson-wire\x00")) {
				return strconv.Atoi(pid)
			}
		}
	}
	return 0, errors.New("the daemon has no wire process")
}

// processorTime returns the processor time in milliseconds that the daemon and its wire process use during settleTime.
func (d *daemon) processorTime(ctx context.Context) (ms float64, err error) {
	wire, err := d.wireProcess()
	if err != nil {
		return 0, err
	}
	used := func() (sum float64, err error) {
		ours, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", d.cmd.Process.Pid)) // The patterns are well-formed.
		theirs, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", wire))
		for _, thread := range append(ours, theirs...) {
			data, err := os.ReadFile(thread)
			if err != nil {
				return 0, err
			}
			var ns float64
			if _, err := fmt.Sscan(string(data), &ns); err != nil {
				return 0, err
			}
			sum += ns / 1e6
		}
		return sum, nil
	}
	before, err := used()
	if err == nil {
		err = waitSettled(ctx)
	}
	if err != nil {
		return 0, err
	}
	after, err := used()
	return after - before, err
}
