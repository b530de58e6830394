package sentry

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"

	sentrycontext "gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/state"
)

// An identity holds the additional PIDs (names) of a thread group that was restored from a checkpoint: one for each restore. It
// is saved with the group's leader, as an action that runs when the leader exits.
type identity struct {
	all    *identities         // contains this identity
	tg     *kernel.ThreadGroup // the restored thread group
	leader *kernel.Task        // leader of tg
	// generations lists the restores (see identities.generation) in which the group got a name, in the order of the restores. Its
	// current name is that of the last one.
	generations []int32
}

// Limits of the numbers of restores, which are called generations.
const (
	// maxGeneration keeps names below 2^30, the largest thread ID that a futex can contain. After that many restores, the
	// generation starts again at 1.
	maxGeneration = 1<<30/kernel.TasksLimit - 2
	// maxGenerations is the number of names that a group keeps, so that PIDs in PID files remain valid for some restores.
	maxGenerations = 16
)

// additionalPID returns the name in a generation of the group with this PID. PIDs are 1 to TasksLimit, so no name equals a PID, and all
// names are different.
func additionalPID(pid kernel.ThreadID, generation int32) kernel.ThreadID {
	return pid + kernel.ThreadID(generation)*kernel.TasksLimit
}

// add records that the group was restored. It returns the generation whose name is dropped because of maxGenerations, or 0.
func (id *identity) add(generation int32) (dropped int32) {
	if len(id.generations) == maxGenerations {
		dropped = id.generations[1]
		id.generations = slices.Delete(id.generations, 1, 2)
	}
	id.generations = append(id.generations, generation)
	return dropped
}

// newestBefore returns the last generation in which the group was restored before generation, or 0.
func (id *identity) newestBefore(generation int32) int32 {
	var newest int32
	for _, g := range id.generations {
		if g < generation {
			newest = g
		}
	}
	return newest
}

// TaskDestroyAction implements [kernel.TaskDestroyAction]. It removes the names when the leader exits. gVisor calls it without
// holding locks, directly after the exit, and waits for it before a save.
func (id *identity) TaskDestroyAction(sentrycontext.Context) {
	defer lockTasks(id.leader.Kernel().TaskSet())()
	tasks := tasksOf(id.leader.PIDNamespace())
	maps.DeleteFunc(tasks, func(_ kernel.ThreadID, t *kernel.Task) bool { return t == id.leader })
	id.all.remove(id.tg)
}

// identities holds the identities of a kernel's restored thread groups. It is saved with the kernel.
type identities struct {
	generation int32 // number of the last restore that gave new names; 0 before the first one

	mu      sync.RWMutex                      // not saved; acquired after the lock of the task set
	byGroup map[*kernel.ThreadGroup]*identity // guarded by mu
}

// nextGeneration increments the generation, after a restore.
func (ids *identities) nextGeneration() {
	ids.generation = ids.generation%maxGeneration + 1
}

// remove removes the identity of tg.
func (ids *identities) remove(tg *kernel.ThreadGroup) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	delete(ids.byGroup, tg)
}

// current returns the PID that getpid returns to tg, whose PID in gVisor is pid.
func (ids *identities) current(tg *kernel.ThreadGroup, pid kernel.ThreadID) kernel.ThreadID {
	ids.mu.RLock()
	defer ids.mu.RUnlock()
	id := ids.byGroup[tg]
	if id == nil {
		return pid
	}
	return additionalPID(pid, id.generations[len(id.generations)-1])
}

// parentName returns the name that parent, whose PID in gVisor is pid, had when child was created. A program may compare
// getppid with that earlier value to check whether its parent is running, so the value must not change.
func (ids *identities) parentName(child, parent *kernel.ThreadGroup, pid kernel.ThreadID) kernel.ThreadID {
	ids.mu.RLock()
	defer ids.mu.RUnlock()
	p := ids.byGroup[parent]
	if p == nil {
		return pid
	}
	born := int32(math.MaxInt32)
	if c := ids.byGroup[child]; c != nil {
		born = c.generations[0]
	}
	if g := p.newestBefore(born); g != 0 {
		return additionalPID(pid, g)
	}
	return pid
}

// The following is written in the form that gVisor's generator produces for types that are saved.

func init() {
	state.Register((*identity)(nil))
	state.Register((*identities)(nil))
}

func (id *identity) StateTypeName() string { return "runtime/gvisor/sentry.identity" }

// StateFields returns the names in checkpoints, which cannot change: "since" is generations.
func (id *identity) StateFields() []string { return []string{"all", "tg", "leader", "since"} }

func (id *identity) StateSave(sink state.Sink) {
	sink.Save(0, &id.all)
	sink.Save(1, &id.tg)
	sink.Save(2, &id.leader)
	sink.Save(3, &id.generations)
}

func (id *identity) StateLoad(_ context.Context, source state.Source) {
	source.Load(0, &id.all)
	source.Load(1, &id.tg)
	source.Load(2, &id.leader)
	source.Load(3, &id.generations)
}

func (ids *identities) StateTypeName() string { return "runtime/gvisor/sentry.identities" }
func (ids *identities) StateFields() []string { return []string{"generation", "of"} }

func (ids *identities) StateSave(sink state.Sink) {
	sink.Save(0, &ids.generation)
	sink.Save(1, &ids.byGroup)
}

func (ids *identities) StateLoad(_ context.Context, source state.Source) {
	source.Load(0, &ids.generation)
	source.Load(1, &ids.byGroup)
}
