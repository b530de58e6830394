package sentry

import (
	"sync"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/marshal/primitive"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// A renaming makes the processes that came out of a checkpoint believe that they were forked: getpid answers another pid than
// before, for as long as they live. OpenSSL compares it with the pid that it saw last, in each of its generators, whenever
// that is used, and seeds itself from the kernel if they differ. Without that two forks of one checkpoint draw the same keys.
//
// The new pid is a name besides the old one. Whatever takes a pid takes both; whatever tells others about a process (wait,
// ps, the sender of a signal) says the old one. Only getpid and gettid of a main thread say the new one, and getppid where the
// same program goes on in a child: getpid() == gettid() and getppid() == the parent's getpid() hold, which programs rely on.
// A program that a child executes is told the old one: Node and shells remember their own pid from their start and pass that.
//
// Decision 5 in docs/decisions has the reasons and the limits.
type renaming struct {
	reseed bool // the processes get new names; else they keep those of earlier restores, if they have any
	once   sync.Once
	ids    *identities
}

// stateKey is what the identities are saved under.
const stateKey = "caisson.identities"

// install wraps the system calls. It must run before gVisor starts a kernel that is restored.
func (r *renaming) install() {
	// Every way to a new process leads past here, so that what is found at the first of these calls is older than the
	// restore.
	for _, sysno := range []uintptr{sysClone, sysClone3, sysFork, sysVfork} {
		wrap(sysno, r.before(nil))
	}
	wrap(sysWait4, r.before(func(t *kernel.Task, args *arch.SyscallArguments) { pidOrGroup(t, &args[0]) }))
	wrap(sysKill, r.before(func(t *kernel.Task, args *arch.SyscallArguments) { pidOrGroup(t, &args[0]) }))
	wrap(sysSetpgid, r.before(func(t *kernel.Task, args *arch.SyscallArguments) { pidOrGroup(t, &args[1]) }))
	wrap(sysWaitid, r.before(func(t *kernel.Task, args *arch.SyscallArguments) {
		if kind := args[0].Int(); kind == linux.P_PID || kind == linux.P_PGID {
			pidOrGroup(t, &args[1])
		}
	}))
	wrap(sysIoctl, r.foreground)
	wrap(sysGetpid, r.after(func(t *kernel.Task, pid kernel.ThreadID) kernel.ThreadID {
		return r.ids.current(t.ThreadGroup(), pid)
	}))
	wrap(sysGettid, r.after(func(t *kernel.Task, tid kernel.ThreadID) kernel.ThreadID {
		if t != t.ThreadGroup().Leader() {
			return tid
		}
		return r.ids.current(t.ThreadGroup(), tid)
	}))
	wrap(sysGetppid, r.after(func(t *kernel.Task, pid kernel.ThreadID) kernel.ThreadID {
		parent := t.Parent()
		if pid == 0 || parent == nil || t.ThreadGroup().Execed() || parent.PIDNamespace() != t.PIDNamespace() {
			return pid
		}
		return r.ids.asKnownTo(t.ThreadGroup(), parent.ThreadGroup(), pid)
	}))
}

// before makes a wrapper that lets change have the arguments first.
func (r *renaming) before(change func(*kernel.Task, *arch.SyscallArguments)) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(original kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			r.begin(t)
			if change != nil {
				change(t, &args)
			}
			return original(t, sysno, args)
		}
	}
}

// after makes a wrapper that lets change have the result, which is a pid.
func (r *renaming) after(change func(*kernel.Task, kernel.ThreadID) kernel.ThreadID) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(original kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			r.begin(t)
			pid, ctrl, err := original(t, sysno, args)
			if err == nil {
				pid = uintptr(change(t, kernel.ThreadID(pid)))
			}
			return pid, ctrl, err
		}
	}
}

// pidOrGroup replaces a new name by the old one, where gVisor compares numbers instead of looking them up: a process group
// (negative in some calls) is called what its first process was.
func pidOrGroup(t *kernel.Task, arg *arch.SyscallArgument) {
	id, sign := kernel.ThreadID(arg.Int()), kernel.ThreadID(1)
	if id < 0 {
		id, sign = -id, -1
	}
	if id <= kernel.TasksLimit {
		return
	}
	if tg := t.PIDNamespace().ThreadGroupWithID(id); tg != nil {
		arg.Value = uintptr(sign * t.PIDNamespace().IDOfThreadGroup(tg))
	}
}

// foreground replaces a new name by the old one in what tcsetpgrp(3) points to, for as long as the call takes: gVisor looks up
// process groups by their number, as pidOrGroup says.
func (r *renaming) foreground(original kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if args[1].Uint() != linux.TIOCSPGRP {
			return original(t, sysno, args)
		}
		var given primitive.Int32
		if _, err := given.CopyIn(t, args[2].Pointer()); err == nil && given > kernel.TasksLimit {
			old := arch.SyscallArgument{Value: uintptr(given)}
			pidOrGroup(t, &old)
			group := primitive.Int32(old.Int())
			if _, err := group.CopyOut(t, args[2].Pointer()); err == nil {
				defer given.CopyOut(t, args[2].Pointer())
			}
		}
		return original(t, sysno, args)
	}
}

// begin gives every process a new name, if they get new ones, once after a restore.
func (r *renaming) begin(t *kernel.Task) {
	r.once.Do(func() {
		k := t.Kernel()
		r.ids, _ = k.PopCheckpointState(stateKey).(*identities)
		if r.ids == nil {
			r.ids = &identities{of: map[*kernel.ThreadGroup]*identity{}}
		}
		k.AddStateToCheckpoint(stateKey, r.ids)
		if !r.reseed {
			return
		}
		r.ids.nextGeneration()
		var groups []*kernel.ThreadGroup
		var leaders []*kernel.Task
		init := k.GlobalInit()
		k.TaskSet().ForEachThreadGroup(func(tg *kernel.ThreadGroup, leader *kernel.Task) {
			// What was exec'd before the checkpoint is being killed now; what is exec'd now is new. Init draws nothing,
			// and is known by its pid.
			if tg != init && leader.Origin != kernel.OriginExec {
				groups, leaders = append(groups, tg), append(leaders, leader)
			}
		})
		defer lockTasks(k.TaskSet())()
		for i, tg := range groups {
			r.ids.rename(tg, leaders[i])
		}
	})
}

// rename gives tg the name of this generation. The task set is locked.
func (ids *identities) rename(tg *kernel.ThreadGroup, leader *kernel.Task) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	id := ids.of[tg]
	if id == nil {
		id = &identity{all: ids, tg: tg, leader: leader}
		if !leader.RegisterOnDestroyAction(id) {
			return // it has ended meanwhile
		}
		ids.of[tg] = id
	}
	tasks, pid := tasksOf(tg.PIDNamespace()), tg.ID()
	if dropped := id.add(ids.generation); dropped != 0 {
		delete(tasks, name(pid, dropped))
	}
	tasks[name(pid, ids.generation)] = leader
}
