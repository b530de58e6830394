package sentry

import (
	"sync"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/marshal/primitive"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// A pidRenamer changes the result of getpid in processes that were restored from a checkpoint, as if they had been forked. At
// each use, OpenSSL's generators compare getpid with the PID of their last use, and seed themselves from the kernel if it
// differs. Without this, two forks of one checkpoint generate the same keys.
//
// The new PID is valid in addition to the old one. System calls accept both. Calls that return the PID of another process
// (wait, ps, the sender of a signal) return the old one. Only getpid, and gettid of a main thread, return the new one, and so
// does getppid in a child that has not called exec since its fork. So getpid() == gettid() holds, and getppid() equals the
// parent's getpid(), on which programs rely. After an exec in the child, getppid returns the old PID, because Node and shells
// store their PID when they start and pass it on.
//
// Decision 5 in docs/decisions describes the reasons and the limits.
type pidRenamer struct {
	reseed bool        // the restore gives the processes new PIDs; if false, getpid returns those of earlier restores
	once   sync.Once   // makes loadIdentities load only once
	ids    *identities // additional PIDs of the processes; set at the first wrapped system call after a restore
}

// identitiesKey is the key under which a checkpoint contains the additional PIDs of restored processes, as *identities.
const identitiesKey = "caisson.identities"

// install wraps the system calls that return or accept PIDs. It must run before gVisor starts the kernel that is restored.
func (r *pidRenamer) install() {
	// All calls that create processes are wrapped, so that all processes that exist at the first wrapped call are older than
	// the restore.
	for _, sysno := range []uintptr{sysClone, sysClone3, sysFork, sysVfork} {
		wrapSyscall(sysno, r.mapArguments(nil))
	}
	wrapSyscall(sysWait4, r.mapArguments(func(t *kernel.Task, args *arch.SyscallArguments) { toOldPID(t, &args[0]) }))
	wrapSyscall(sysKill, r.mapArguments(func(t *kernel.Task, args *arch.SyscallArguments) { toOldPID(t, &args[0]) }))
	wrapSyscall(sysSetpgid, r.mapArguments(func(t *kernel.Task, args *arch.SyscallArguments) { toOldPID(t, &args[1]) }))
	wrapSyscall(sysWaitid, r.mapArguments(func(t *kernel.Task, args *arch.SyscallArguments) {
		if kind := args[0].Int(); kind == linux.P_PID || kind == linux.P_PGID {
			toOldPID(t, &args[1])
		}
	}))
	wrapSyscall(sysIoctl, r.wrapSetForeground)
	wrapSyscall(sysGetpid, r.mapPID(func(t *kernel.Task, pid kernel.ThreadID) kernel.ThreadID {
		return r.ids.currentPID(t.ThreadGroup(), pid)
	}))
	wrapSyscall(sysGettid, r.mapPID(func(t *kernel.Task, tid kernel.ThreadID) kernel.ThreadID {
		if t != t.ThreadGroup().Leader() {
			return tid
		}
		return r.ids.currentPID(t.ThreadGroup(), tid)
	}))
	wrapSyscall(sysGetppid, r.mapPID(func(t *kernel.Task, pid kernel.ThreadID) kernel.ThreadID {
		parent := t.Parent()
		if pid == 0 || parent == nil || t.ThreadGroup().Execed() || parent.PIDNamespace() != t.PIDNamespace() {
			return pid
		}
		return r.ids.parentPID(t.ThreadGroup(), parent.ThreadGroup(), pid)
	}))
}

// mapArguments returns a function for wrapSyscall that makes a system call run change on its arguments first. change may be nil.
func (r *pidRenamer) mapArguments(change func(*kernel.Task, *arch.SyscallArguments)) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(original kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			r.loadIdentities(t)
			if change != nil {
				change(t, &args)
			}
			return original(t, sysno, args)
		}
	}
}

// mapPID returns a function for wrapSyscall that makes a system call return the result of change instead of a PID.
func (r *pidRenamer) mapPID(change func(*kernel.Task, kernel.ThreadID) kernel.ThreadID) func(kernel.SyscallFn) kernel.SyscallFn {
	return func(original kernel.SyscallFn) kernel.SyscallFn {
		return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
			r.loadIdentities(t)
			pid, ctrl, err := original(t, sysno, args)
			if err == nil {
				pid = uintptr(change(t, kernel.ThreadID(pid)))
			}
			return pid, ctrl, err
		}
	}
}

// toOldPID replaces an additional PID by the old PID in an argument that may be the ID of a process group, negative in some
// calls. gVisor does not look up such an ID in the table of PIDs, but compares it with the old PID of the group's first process.
func toOldPID(t *kernel.Task, arg *arch.SyscallArgument) {
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

// wrapSetForeground wraps ioctl. For the duration of a TIOCSPGRP call (tcsetpgrp), it replaces an additional PID by the old
// PID in the memory that the call's argument points to.
func (r *pidRenamer) wrapSetForeground(original kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if args[1].Uint() != linux.TIOCSPGRP {
			return original(t, sysno, args)
		}
		var given primitive.Int32
		if _, err := given.CopyIn(t, args[2].Pointer()); err == nil && given > kernel.TasksLimit {
			old := arch.SyscallArgument{Value: uintptr(given)}
			toOldPID(t, &old)
			group := primitive.Int32(old.Int())
			if _, err := group.CopyOut(t, args[2].Pointer()); err == nil {
				defer given.CopyOut(t, args[2].Pointer())
			}
		}
		return original(t, sysno, args)
	}
}

// loadIdentities loads the additional PIDs and, if r.reseed is set, gives the processes except init and execs new PIDs, once.
func (r *pidRenamer) loadIdentities(t *kernel.Task) {
	r.once.Do(func() {
		k := t.Kernel()
		r.ids, _ = k.PopCheckpointState(identitiesKey).(*identities)
		if r.ids == nil {
			r.ids = &identities{byGroup: map[*kernel.ThreadGroup]*identity{}}
		}
		k.AddStateToCheckpoint(identitiesKey, r.ids)
		if !r.reseed {
			return
		}
		r.ids.nextGeneration()
		var groups []*kernel.ThreadGroup
		var leaders []*kernel.Task
		init := k.GlobalInit()
		k.TaskSet().ForEachThreadGroup(func(tg *kernel.ThreadGroup, leader *kernel.Task) {
			// Processes that were exec'd before the checkpoint are being killed; those exec'd since are new. Init generates no
			// random values, and its PID must stay 1.
			if tg != init && leader.Origin != kernel.OriginExec {
				groups, leaders = append(groups, tg), append(leaders, leader)
			}
		})
		defer lockTasks(k.TaskSet())()
		for i, tg := range groups {
			r.ids.addName(tg, leaders[i])
		}
	})
}

// addName adds to the thread group tg the additional PID that belongs to the last restore. The caller must hold the lock of the
// task set.
func (ids *identities) addName(tg *kernel.ThreadGroup, leader *kernel.Task) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	id := ids.byGroup[tg]
	if id == nil {
		id = &identity{all: ids, tg: tg, leader: leader}
		if !leader.RegisterOnDestroyAction(id) {
			return // the leader has exited
		}
		ids.byGroup[tg] = id
	}
	tasks, pid := taskTable(tg.PIDNamespace()), tg.ID()
	if dropped := id.addGeneration(ids.generation); dropped != 0 {
		delete(tasks, additionalPID(pid, dropped))
	}
	tasks[additionalPID(pid, ids.generation)] = leader
}
