package drive

import (
	"bytes"
	"errors"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Timeouts and intervals for killing and reaping processes.
const (
	killTimeout  = time.Minute     // for killing all processes; long, because some fork all the time and slow down the machine
	stopTimeout  = 5 * time.Second // for stopping all processes; then they are killed even if new ones appear
	exitDeadline = 5 * time.Second // for a process to exit; after it the process counts as one that cannot be killed
	reapInterval = time.Second     // minimum time between two scans for zombies
)

// isSubreaper is true once this process is a subreaper: orphans among its descendants become its children.
var isSubreaper atomic.Bool

// startedChildren has the pids of the children that this process has started and waits for. Other children are adopted orphans.
var startedChildren = struct {
	mu  sync.Mutex
	own map[int]bool
}{own: map[int]bool{}}

// background has the names of the programs that may keep running after the task; nil if there are no such programs.
var background atomic.Pointer[[]string]

// isBackground reports whether p may keep running after the task, because its name is in background.
func isBackground(p process) bool {
	names := background.Load()
	return names != nil && slices.Contains(*names, p.name)
}

// becomeSubreaper makes this process a subreaper, so that orphans among its descendants become its children, and reaps orphans
// when they exit. It must be used only if all child processes are started by drivers.
func becomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	isSubreaper.Store(true)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		for range ended {
			reap()
			time.Sleep(reapInterval)
		}
	}()
	return nil
}

// reap reaps adopted orphans that have exited.
func reap() {
	self := os.Getpid()
	for _, p := range processes() {
		if p.parent != self || !p.ended {
			continue
		}
		startedChildren.mu.Lock()
		if !startedChildren.own[p.pid] {
			_, _ = syscall.Wait4(p.pid, nil, syscall.WNOHANG, nil) // the exit status of an orphan is not used
		}
		startedChildren.mu.Unlock()
	}
}

// process is a process that is visible in /proc.
type process struct {
	pid, parent int    // ids of the process and of its parent
	name        string // name of the program according to the kernel, which has at most 15 bytes
	ended       bool   // the process has exited and has not been reaped
}

// processes lists all processes that are visible in /proc.
func processes() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // after a read error, the names that were read are used
	var all []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // the process has been reaped
		}
		// The file has the format "pid (name) state parent …". The name may contain any characters, also parentheses and newlines.
		first, last := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
		if first < 0 || last < first {
			continue
		}
		fields := bytes.Fields(stat[last+1:])
		if len(fields) < 2 {
			continue
		}
		parent, err := strconv.Atoi(string(fields[1]))
		if err != nil {
			continue
		}
		ended := string(fields[0]) == "Z" || string(fields[0]) == "X"
		all = append(all, process{pid: pid, parent: parent, name: string(stat[first+1 : last]), ended: ended})
	}
	return all
}

// descendants returns all descendants of the process with pid root.
func descendants(root int) []process {
	all := processes()
	children := map[int][]process{}
	for _, p := range all {
		children[p.parent] = append(children[p.parent], p)
	}
	var found []process
	for todo := []int{root}; len(todo) > 0; {
		next := children[todo[0]]
		delete(children, todo[0]) // avoids an endless loop: a list that is read while pids are reused may contain a cycle
		todo = todo[1:]
		for _, p := range next {
			found = append(found, p)
			todo = append(todo, p.pid)
		}
	}
	return found
}

// errSurvivors is the error of killDescendants if it could not kill all processes.
var errSurvivors = errors.New("some processes of the agent could not be killed")

// killDescendants kills all descendants of the process root except background programs, even if they fork meanwhile, and returns
// once they have exited. It first stops processes with SIGSTOP, and kills them when a scan finds no new process: a stopped
// process cannot fork, whereas a killed one makes room under a limit on processes for new ones. Returns errSurvivors if processes
// cannot be killed, such as those of another user.
func killDescendants(root int) error {
	known := map[int]time.Time{} // time at which each process was first seen, by pid
	for began := time.Now(); ; {
		now := time.Now()
		var living []int
		stuck := 0
		fresh := false
		for _, p := range descendants(root) {
			if p.ended || isBackground(p) {
				continue
			}
			living = append(living, p.pid)
			if at, seen := known[p.pid]; !seen {
				_ = syscall.Kill(p.pid, syscall.SIGSTOP) // after an error, the next scan shows whether the process has exited
				known[p.pid], fresh = now, true
			} else if now.Sub(at) > exitDeadline {
				stuck++
			}
		}
		if !fresh || now.Sub(began) > stopTimeout {
			for _, pid := range living {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		switch {
		case len(living) == 0:
			reap()
			return nil
		case stuck == len(living) || now.Sub(began) > killTimeout:
			return errSurvivors
		case !fresh: // the scan found no new process, so all were killed; give them time to exit
			time.Sleep(2 * time.Millisecond)
		}
	}
}
