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

// Times of killing.
const (
	killTime = time.Minute     // for killing processes that multiply meanwhile: on a busy machine they have most of the time, and this process little
	stopTime = 5 * time.Second // in which processes are stopped before they are killed
	deadTime = 5 * time.Second // in which a process that is killed is gone, if it can be killed
	reapTime = time.Second     // between two looks for orphans that have ended
)

// adopting is true once orphans of whatever this process has started become its own children.
var adopting atomic.Bool

// family is the children that are waited for by whoever started them. Others are orphans that were adopted.
var family = struct {
	mu  sync.Mutex
	own map[int]bool
}{own: map[int]bool{}}

// spared are the names of programs that may run on when the task has ended. Nil until there is a task that has some.
var spared atomic.Pointer[[]string]

// mayStay reports whether p may run on when the task has ended.
func mayStay(p process) bool {
	names := spared.Load()
	return names != nil && slices.Contains(*names, p.name)
}

// adopt makes this process the parent of every orphan below it, so that none is lost from sight, and waits for those that end. It is for
// programs that start nothing but what drivers start.
func adopt() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	adopting.Store(true)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		for range ended {
			reap()
			time.Sleep(reapTime)
		}
	}()
	return nil
}

// reap waits for orphans that have ended.
func reap() {
	self := os.Getpid()
	for _, p := range processes() {
		if p.parent != self || !p.ended {
			continue
		}
		family.mu.Lock()
		if !family.own[p.pid] {
			_, _ = syscall.Wait4(p.pid, nil, syscall.WNOHANG, nil) // its end interests nobody
		}
		family.mu.Unlock()
	}
}

// process is an entry of /proc.
type process struct {
	pid, parent int
	name        string // of its program, as the kernel knows it
	ended       bool   // and has not been waited for
}

// processes lists all processes that can be seen.
func processes() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what could be read is better than nothing
	var all []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // gone
		}
		// pid (name) state parent …; the name may contain anything, parentheses and newlines too.
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

// below returns the processes that descend from root.
func below(root int) []process {
	all := processes()
	children := map[int][]process{}
	for _, p := range all {
		children[p.parent] = append(children[p.parent], p)
	}
	var found []process
	for todo := []int{root}; len(todo) > 0; {
		next := children[todo[0]]
		delete(children, todo[0]) // a list that was read while processes came and went may have a circle
		todo = todo[1:]
		for _, p := range next {
			found = append(found, p)
			todo = append(todo, p.pid)
		}
	}
	return found
}

var errSurvivors = errors.New("processes that the agent has started could not be killed")

// killBelow kills all that descends from root, however fast it multiplies, and returns once nothing of it runs any more but what may. It stops
// processes first, and kills them when a look finds none that is new: a process that is stopped starts no others, and one that is killed makes
// room for them. It gives up on what cannot be killed, such as a process of another user.
func killBelow(root int) error {
	known := map[int]time.Time{} // when a process was seen first
	for began := time.Now(); ; {
		now := time.Now()
		var living []int
		stuck := 0
		fresh := false
		for _, p := range below(root) {
			if p.ended || mayStay(p) {
				continue
			}
			living = append(living, p.pid)
			if at, seen := known[p.pid]; !seen {
				_ = syscall.Kill(p.pid, syscall.SIGSTOP) // gone, or of another user; the next look tells
				known[p.pid], fresh = now, true
			} else if now.Sub(at) > deadTime {
				stuck++
			}
		}
		if !fresh || now.Sub(began) > stopTime {
			for _, pid := range living {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		switch {
		case len(living) == 0:
			reap()
			return nil
		case stuck == len(living) || now.Sub(began) > killTime:
			return errSurvivors
		case !fresh: // what multiplies gets no pause; what dies needs a moment
			time.Sleep(2 * time.Millisecond)
		}
	}
}
