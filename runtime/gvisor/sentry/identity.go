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

// An identity holds the additional PIDs of a thread group that was restored from a checkpoint: one for each restore that has
// added PIDs. It is saved with the group's leader, as an action that runs when the leader exits.
type identity struct {
	all    *identities         // the set that contains this identity
	tg     *kernel.ThreadGroup // the restored thread group
	leader *kernel.Task        // leader of tg
	// generations lists the numbers of the restores that have added a PID to the group, in the order of the restores. In the
	// group, getpid returns the PID that the last of them has added.
	generations []int32
}

// Limits of generations. A generation is the number of a restore that has added a PID to each thread group.
const (
	// maxGeneration is the greatest generation. It keeps additional PIDs below 2^30, the largest thread ID that a futex can contain.
	// The generation after maxGeneration is 1.
	maxGeneration = 1<<30/kernel.TasksLimit - 2
	// maxGenerations is the maximum number of additional PIDs of a group: the first one and the last ones, because programs may
	// have stored them, for example in PID files.
	maxGenerations = 16
)

// additionalPID returns the PID that the restore with the number generation adds to the thread group with the PID pid. gVisor's
// PIDs are 1 to TasksLimit, so no additional PID equals a PID or that of another group.
func additionalPID(pid kernel.ThreadID, generation int32) kernel.ThreadID {
	return pid + kernel.ThreadID(generation)*kernel.TasksLimit
}

// addGeneration records that the restore with the number generation has added a PID to the thread group id.tg. Beyond
// maxGenerations added PIDs, one must be removed: dropped is the number of the restore that has added it, or 0.
func (id *identity) addGeneration(generation int32) (dropped int32) {
	if len(id.generations) == maxGenerations {
		dropped = id.generations[1]
		id.generations = slices.Delete(id.generations, 1, 2)
	}
	id.generations = append(id.generations, generation)
	return dropped
}

// newestBefore returns the number of the last restore with a number below generation that has added a PID to id.tg, or 0.
func (id *identity) newestBefore(generation int32) int32 {
	var newest int32
	for _, g := range id.generations {
		if g < generation {
			newest = g
		}
	}
	return newest
}

// TaskDestroyAction implements [kernel.TaskDestroyAction]. It removes the PIDs of the thread group when its leader exits. gVisor
// calls it without holding locks, directly after the exit, and waits for it before a save.
func (id *identity) TaskDestroyAction(sentrycontext.Context) {
	defer lockTasks(id.leader.Kernel().TaskSet())()
	tasks := taskTable(id.leader.PIDNamespace())
	maps.DeleteFunc(tasks, func(_ kernel.ThreadID, t *kernel.Task) bool { return t == id.leader })
	id.all.remove(id.tg)
}

// identities holds the identities of a kernel's restored thread groups: their additional PIDs. It is saved with the kernel.
type identities struct {
	generation int32 // number of the last restore that has added PIDs; 0 before the first one

	mu      sync.RWMutex                      // acquired after the lock of the task set; not part of a checkpoint
	byGroup map[*kernel.ThreadGroup]*identity // identities by thread group; guarded by mu
}

// nextGeneration increments the number of the last restore. It is called after a restore, before PIDs are added for the restore.
func (ids *identities) nextGeneration() {
	ids.generation = ids.generation%maxGeneration + 1
}

// remove removes the identity of tg, which lists the additional PIDs of that thread group.
func (ids *identities) remove(tg *kernel.ThreadGroup) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	delete(ids.byGroup, tg)
}

// currentPID returns the result of getpid for tg, whose PID in gVisor is pid: the PID that was added last, or pid if none was.
func (ids *identities) currentPID(tg *kernel.ThreadGroup, pid kernel.ThreadID) kernel.ThreadID {
	ids.mu.RLock()
	defer ids.mu.RUnlock()
	id := ids.byGroup[tg]
	if id == nil {
		return pid
	}
	return additionalPID(pid, id.generations[len(id.generations)-1])
}

// parentPID returns what getpid returned in parent, whose PID in gVisor is pid, when child was created. A program may compare
// getppid with that earlier value to check whether its parent is running, so the value must not change.
func (ids *identities) parentPID(child, parent *kernel.ThreadGroup, pid kernel.ThreadID) kernel.ThreadID {
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

// The methods that save and load identity and identities have the form that gVisor's generator gives them.

// init registers both types with gVisor, which refers to a type in a checkpoint by the result of StateTypeName.
func init() {
	state.Register((*identity)(nil))
	state.Register((*identities)(nil))
}

func (id *identity) StateTypeName() string { return "runtime/gvisor/sentry.identity" }

// StateFields returns the names of the fields in checkpoints, which cannot change: "since" is the field generations.
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
func (ids *identities) StateFields() []string { return []string{"generation", "of"} } // "of" is the field byGroup

func (ids *identities) StateSave(sink state.Sink) {
	sink.Save(0, &ids.generation)
	sink.Save(1, &ids.byGroup)
}

func (ids *identities) StateLoad(_ context.Context, source state.Source) {
	source.Load(0, &ids.generation)
	source.Load(1, &ids.byGroup)
}
