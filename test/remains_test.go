package test_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/poll"
)

// processes returns the processes whose arguments want accepts, by process ID.
func processes(want func(args string) bool) map[int]string {
	found := map[int]string{}
	entries, _ := os.ReadDir("/proc") // An empty result fails tests that search for a process.
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if args := strings.TrimRight(strings.ReplaceAll(string(data), "\x00", " "), " "); err == nil && args != "" && want(args) {
			found[pid] = args
		}
	}
	return found
}

// daemonPID returns the process ID of the data directory's daemon, or 0 if there is none.
func (h *host) daemonPID() int {
	found := processes(func(args string) bool {
		return strings.HasPrefix(args, "caisson serve ") && strings.Contains(args+" ", " --data "+h.data+" ")
	})
	for pid := range found {
		if _, forked := found[parentPID(pid)]; !forked { // A child has the arguments of the daemon until it executes its program.
			return pid
		}
	}
	return 0
}

// parentPID returns the process ID of the parent of a process, or 0 if the process has ended.
func parentPID(pid int) int {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	if f := strings.Fields(rest); len(f) > 1 {
		parent, _ := strconv.Atoi(f[1])
		return parent
	}
	return 0
}

// children returns the children of a process.
func children(pid int) map[int]string {
	of := processes(func(string) bool { return true })
	for p := range of {
		if parentPID(p) != pid {
			delete(of, p)
		}
	}
	return of
}

// sandboxProcesses returns gVisor's processes of this data directory.
func (h *host) sandboxProcesses() map[int]string {
	return processes(func(args string) bool { return strings.HasPrefix(args, "runsc-") && strings.Contains(args, h.data+"/") })
}

// remains lists the resources of this data directory on the host except the daemon, its wire process and the store: one
// line for each process, mount, network namespace, TAP, cgroup and loop device, and for each file that did not exist
// when the daemon first served.
func (h *host) remains() []string {
	var list []string
	for pid, args := range processes(func(args string) bool { return strings.Contains(args, h.data+"/") }) {
		list = append(list, fmt.Sprintf("process %d %.80s", pid, args))
	}
	daemon := h.daemonPID()
	list = append(list, h.mounts("self")...)
	if daemon != 0 {
		list = append(list, h.mounts(strconv.Itoa(daemon))...)
		// The daemon itself keeps one empty namespace for all gofers.
		list = append(list, attachments(daemon, 1)...)
		for pid, args := range children(daemon) {
			if strings.HasPrefix(args, "caisson-wire") {
				list = append(list, attachments(pid, 0)...)
			} else {
				list = append(list, fmt.Sprintf("child %d %.80s", pid, args))
			}
		}
	}
	list = append(list, h.cgroups()...)
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // The pattern is valid.
	for _, l := range loops {
		if data, err := os.ReadFile(l); err == nil && strings.HasPrefix(string(data), h.data+"/") {
			list = append(list, "loop device "+string(data))
		}
	}
	for _, dir := range []string{"sandboxes", "snapshots", "images/tmp"} {
		entries, _ := os.ReadDir(filepath.Join(h.data, dir)) // A missing directory is empty.
		for _, e := range entries {
			list = append(list, "file "+filepath.Join(dir, e.Name()))
		}
	}
	slices.Sort(list)
	return list
}

// mounts returns the mounts of the data directory in the mount namespace of a process.
func (h *host) mounts(pid string) (list []string) {
	data, _ := os.ReadFile("/proc/" + pid + "/mountinfo") // The process may have ended.
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, h.data+"/") {
			list = append(list, "mount "+strings.TrimSpace(line))
		}
	}
	return list
}

// attachments returns the TAPs and the network namespaces that a process of Caisson holds. namespaces is the number of
// network namespaces to ignore.
func attachments(pid, namespaces int) (list []string) {
	own, _ := os.Readlink("/proc/self/ns/net")
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(dir) // The process may have ended.
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		switch {
		case err != nil || to == own:
		case strings.HasPrefix(to, "net:[") && namespaces > 0:
			namespaces--
		case strings.HasPrefix(to, "net:["), to == "/dev/net/tun":
			list = append(list, fmt.Sprintf("descriptor of %d: %s", pid, to))
		}
	}
	return list
}

// cgroups returns the cgroups of this data directory's sandboxes in every hierarchy.
func (h *host) cgroups() (list []string) {
	for _, root := range h.cgroupRoots() {
		entries, _ := os.ReadDir(root) // Created with the first sandbox.
		for _, e := range entries {
			if e.IsDir() {
				list = append(list, "cgroup "+filepath.Join(root, e.Name()))
			}
		}
	}
	return list
}

// cgroupRoots returns the directories that contain this data directory's cgroups: cgroup v2, and each v1 hierarchy.
func (h *host) cgroupRoots() []string {
	instance, err := os.ReadFile(filepath.Join(h.data, "instance"))
	if err != nil {
		return nil
	}
	roots, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/*/caisson", string(instance))) // The pattern is valid.
	return append(roots, filepath.Join("/sys/fs/cgroup/caisson", string(instance)))
}

// wantRemains waits until the remaining resources equal want, and otherwise fails with the difference.
func (h *host) wantRemains(want []string) {
	h.t.Helper()
	var got []string
	deadline := time.Now().Add(settle)
	poll.Until(h.t, 2*settle, func() bool {
		got = h.remains()
		return slices.Equal(got, want) || time.Now().After(deadline)
	})
	if !slices.Equal(got, want) {
		h.t.Errorf("left on the host:\n\t%s\nwant:\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// files lists the data directory except files that grow on their own: the store and the logs.
func (h *host) files() (list []string) {
	err := filepath.WalkDir(h.data, func(p string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && p != h.data {
			return nil // The file was removed during the search.
		}
		if name := filepath.Base(p); err == nil && !strings.HasPrefix(name, "caisson.db") && !strings.HasSuffix(name, ".log") {
			list = append(list, strings.TrimPrefix(p, h.data))
		}
		return err
	})
	if err != nil {
		h.t.Error(err)
	}
	return list
}

// force removes everything left of a failed test, so that the next one starts on a clean host.
func (h *host) force() {
	for pid := range processes(func(args string) bool { return strings.Contains(args, h.data+"/") }) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	if pid := h.daemonPID(); pid != 0 {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, root := range h.cgroupRoots() {
		// From the leaves up; the empty cgroup of the instance itself is removed last.
		var dirs []string
		filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		slices.Reverse(dirs)
		for _, d := range dirs {
			deadline := time.Now().Add(settle)
			poll.Until(h.t, 2*settle, func() bool {
				err := unix.Rmdir(d)
				return err != unix.EBUSY || time.Now().After(deadline)
			})
		}
	}
}
