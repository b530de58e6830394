package gvisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// state is the persistent state of a sandbox, for a restarted daemon: state.json in the runtime's subdirectory of the sandbox.
type state struct {
	Main, Gofer process      // the sentry and the gofer of the sandbox
	Cgroup      string       // path of the cgroup, relative to the root of each hierarchy
	HasCommand  bool         // whether the sandbox has a command, which init starts
	Memory      caisson.Size // memory limit in bytes; 0: none
	Disk        caisson.Size // limit in bytes of the changes to the root file system
	Restored    bool         // whether the sandbox was restored from a checkpoint
	Recorded    []string     `json:",omitempty"` // targets of the mounts for which the last writers of files are recorded
}

// process identifies a host process. The start time distinguishes it from later processes with the same PID.
type process struct {
	PID   int
	Start uint64 // start time in clock ticks since boot: field 22 of /proc/PID/stat
}

// findProcess returns the process that currently has the PID. Returns an error if there is none or if it has exited.
func findProcess(pid int) (process, error) {
	start, err := startTime(pid)
	return process{pid, start}, err
}

// alive reports whether the process exists and has not exited.
func (p process) alive() bool {
	start, err := startTime(p.PID)
	return p.PID > 0 && err == nil && start == p.Start
}

// startTime returns when the process that has the PID was started, in clock ticks since boot. Returns [os.ErrProcessDone] if it
// has exited and has not been reaped.
func startTime(pid int) (uint64, error) {
	st, err := readStat(pid)
	if err == nil && (st.state == 'Z' || st.state == 'X') {
		err = os.ErrProcessDone
	}
	return st.start, err
}

// stat contains fields of /proc/PID/stat.
type stat struct {
	state           byte   // state of the process: R, S, D, T, Z or X
	parent, session int    // PIDs of the parent and of the session leader
	start           uint64 // start time in clock ticks since boot
}

// readStat reads /proc/PID/stat.
func readStat(pid int) (st stat, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return st, err
	}
	// The second field is the command's name in parentheses and may contain any bytes.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return st, errors.New("malformed stat of process " + strconv.Itoa(pid))
	}
	st.state = fields[0][0]
	st.parent, err = strconv.Atoi(fields[1])
	session, err2 := strconv.Atoi(fields[3])
	st.session = session
	start, err3 := strconv.ParseUint(fields[19], 10, 64)
	st.start = start
	return st, errors.Join(err, err2, err3)
}

// save writes s.state to state.json.
func (s *sandbox) save() error {
	data, err := json.Marshal(s.state)
	if err != nil {
		return err
	}
	tmp := filepath.Join(s.dir, "state.json.tmp")
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(s.dir, "state.json"))
}

// adopt adds the sandboxes in the directory of r that a previous daemon has started. A directory without a readable state
// belongs to a launch that was interrupted: the sandbox is listed as not running, so that the caller destroys it.
func adopt(r *Runtime) error {
	entries, err := os.ReadDir(r.cfg.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		id, err := caisson.ParseID(caisson.SandboxPrefix, e.Name())
		if err != nil {
			continue
		}
		s := newSandbox(r.watch, id, filepath.Join(r.cfg.Dir, e.Name()))
		if _, err := os.Stat(s.dir); err != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join(s.dir, "state.json"))
		if err != nil || json.Unmarshal(data, &s.state) != nil || filepath.Dir(s.state.Cgroup) != r.cfg.Cgroup {
			s.state = state{} // state.json is unreadable, or belongs to the instance of which this data directory is a copy
		}
		if s.state.Main.alive() {
			s.done = make(chan struct{})
			if err := r.watch.add(s.state.Main.PID, s.sentryExited); err != nil {
				s.sentryExited()
			}
			r.watch.add(s.state.Gofer.PID, s.goferExited)
			s.restoreMemoryLimit() // the previous daemon may have exited before it restored the limit
		}
		r.sandboxes[id] = s
	}
	return nil
}
