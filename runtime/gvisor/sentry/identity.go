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

// An identity holds the additional PIDs, called names, of a thread group that was restored from a checkpoint: one for each
// restore that gave new names. It is saved with the group's leader, as an action that runs when the leader exits.
type identity struct {
	all    *identities         // the set that contains this identity
	tg     *kernel.ThreadGroup // the restored thread group
	leader *kernel.Task        // leader of tg
	// generations lists the restores (see identities.generation) that gave the group a name, in the order of the restores. The
	// group's current name is that of the last restore in the list.
	generations []int32
}

// Limits of generations. A generation is the number of a restore that gave new names.
const (
	// maxGeneration is the greatest generation. It keeps names below 2^30, the largest thread ID that a futex can contain. The
	// generation after maxGeneration is 1.
	maxGeneration = 1<<30/kernel.TasksLimit - 2
	// maxGenerations is the number of names that a group keeps, so that PIDs in PID files remain valid for some restores.
	maxGenerations = 16
)

// additionalPID returns the additional PID that the restore with the number generation gives to the thread group with the PID pid.
// PIDs are 1 to TasksLimit, so no additional PID equals a PID or that of another group.
func additionalPID(pid kernel.ThreadID, generation int32) kernel.ThreadID {
	return pid + kernel.ThreadID(generation)*kernel.TasksLimit
}

// addGeneration records that the restore with the number generation gave the group a name. It returns the generation whose name
// must be removed because the group has maxGenerations names already, or 0.
func (id *identity) addGeneration(generation int32) (dropped int32) {
	if len(id.generations) == maxGenerations {
		dropped = id.generations[1]
		id.generations = slices.Delete(id.generations, 1, 2)
	}
	id.generations = append(id.generations, generation)
	return dropped
}

// newestBefore returns the last of the group's generations that is less than generation, or 0.
func (id *identity) newestBefore(generation int32) int32 {
	var newest int32
	for _, g := range id.generations {
		if g < generation {
			newest = g
		}
	}
	return newest
}

// TaskDestroyAction implements [kernel.TaskDestroyAction]. It removes the names of the thread group when its leader exits. gVisor
// calls it without holding locks, directly after the exit, and waits for it before a save.
func (id *identity) TaskDestroyAction(sentrycontext.Context) {
	defer lockTasks(id.leader.Kernel().TaskSet())()
	tasks := taskTable(id.leader.PIDNamespace())
	maps.DeleteFunc(tasks, func(_ kernel.ThreadID, t *kernel.Task) bool { return t == id.leader })
	id.all.remove(id.tg)
}

// identities holds the identities of a kernel's restored thread groups: their additional PIDs. It is saved with the kernel.
type identities struct {
	generation int32 // number of the last restore that gave new names; 0 before the first one

	mu      sync.RWMutex                      // acquired after the lock of the task set; not part of a checkpoint
	byGroup map[*kernel.ThreadGroup]*identity // identities by thread group; guarded by mu
}

// nextGeneration increments the generation. It is called after a restore, before the restore's names are added.
func (ids *identities) nextGeneration() {
	ids.generation = ids.generation%maxGeneration + 1
}

// remove removes the identity of tg.
func (ids *identities) remove(tg *kernel.ThreadGroup) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	delete(ids.byGroup, tg)
}

// currentPID returns the result of getpid for tg, whose PID in gVisor is pid: the current name, or pid if tg has no names.
func (ids *identities) currentPID(tg *kernel.ThreadGroup, pid kernel.ThreadID) kernel.ThreadID {
	ids.mu.RLock()
	defer ids.mu.RUnlock()
	id := ids.byGroup[tg]
	if id == nil {
		return pid
	}
	return additionalPID(pid, id.generations[len(id.generations)-1])
}

// parentPID returns the name, or PID, that parent, whose PID in gVisor is pid, had when child was created. A program may compare
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
func (ids *identities) StateFields() []string { return []string{"generation", "of"} }

func (ids *identities) StateSave(sink state.Sink) {
	sink.Save(0, &ids.generation)
	sink.Save(1, &ids.byGroup)
}

func (ids *identities) StateLoad(_ context.Context, source state.Source) {
	source.Load(0, &ids.generation)
	source.Load(1, &ids.byGroup)
}
