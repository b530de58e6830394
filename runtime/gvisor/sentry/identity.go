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

// An identity is the further names of a thread group that came out of a checkpoint: one for each restore that it has been
// through. It is saved with the group's leader, as something to do when that ends.
type identity struct {
	all    *identities
	tg     *kernel.ThreadGroup
	leader *kernel.Task
	// since is the generations in which it was restored, ascending. The first says when it was born, the last is in use.
	since []int32
}

// Bounds of generations.
const (
	// maxGeneration keeps names below 2^30, the greatest that a futex can hold. A sandbox that is restored more often
	// starts again at 1.
	maxGeneration = 1<<30/kernel.TasksLimit - 2
	// maxSince is how many of its names a group keeps: those of files with pids in them should be found for a while.
	maxSince = 16
)

// name is what a group with this pid is called in a generation. Pids are 1 to TasksLimit, so that no name is a pid and no two
// names are equal.
func name(pid kernel.ThreadID, generation int32) kernel.ThreadID {
	return pid + kernel.ThreadID(generation)*kernel.TasksLimit
}

// add notes that the group was restored, and returns the generation whose name it gives up for that, or 0.
func (id *identity) add(generation int32) (dropped int32) {
	if len(id.since) == maxSince {
		dropped = id.since[1]
		id.since = slices.Delete(id.since, 1, 2)
	}
	id.since = append(id.since, generation)
	return dropped
}

// newestBefore returns the last generation in which the group was restored before generation, or 0.
func (id *identity) newestBefore(generation int32) int32 {
	var newest int32
	for _, g := range id.since {
		if g < generation {
			newest = g
		}
	}
	return newest
}

// TaskDestroyAction implements [kernel.TaskDestroyAction]: the names end with the leader. gVisor calls it right after the
// end, with no lock held, and waits for it before it saves.
func (id *identity) TaskDestroyAction(sentrycontext.Context) {
	defer lockTasks(id.leader.Kernel().TaskSet())()
	tasks := tasksOf(id.leader.PIDNamespace())
	maps.DeleteFunc(tasks, func(_ kernel.ThreadID, t *kernel.Task) bool { return t == id.leader })
	id.all.remove(id.tg)
}

// identities is what a kernel knows of its restored thread groups. It is saved with the kernel.
type identities struct {
	generation int32 // the present one; 0 before the first restore

	mu sync.RWMutex                      // not saved. Taken after the lock of the task set
	of map[*kernel.ThreadGroup]*identity // guarded by mu
}

// nextGeneration begins the generation after a restore.
func (ids *identities) nextGeneration() {
	ids.generation = ids.generation%maxGeneration + 1
}

func (ids *identities) remove(tg *kernel.ThreadGroup) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	delete(ids.of, tg)
}

// current returns what tg, whose pid is pid, is to be told that it is called.
func (ids *identities) current(tg *kernel.ThreadGroup, pid kernel.ThreadID) kernel.ThreadID {
	ids.mu.RLock()
	defer ids.mu.RUnlock()
	id := ids.of[tg]
	if id == nil {
		return pid
	}
	return name(pid, id.since[len(id.since)-1])
}

// asKnownTo returns what parent, whose pid is pid, called itself when child was born: a program that compares the two, to see
// whether its parent lives, must not see a change.
func (ids *identities) asKnownTo(child, parent *kernel.ThreadGroup, pid kernel.ThreadID) kernel.ThreadID {
	ids.mu.RLock()
	defer ids.mu.RUnlock()
	p := ids.of[parent]
	if p == nil {
		return pid
	}
	born := int32(math.MaxInt32)
	if c := ids.of[child]; c != nil {
		born = c.since[0]
	}
	if g := p.newestBefore(born); g != 0 {
		return name(pid, g)
	}
	return pid
}

// What follows is what gVisor's generator writes for types that are saved.

func init() {
	state.Register((*identity)(nil))
	state.Register((*identities)(nil))
}

func (id *identity) StateTypeName() string { return "runtime/gvisor/sentry.identity" }
func (id *identity) StateFields() []string { return []string{"all", "tg", "leader", "since"} }

func (id *identity) StateSave(sink state.Sink) {
	sink.Save(0, &id.all)
	sink.Save(1, &id.tg)
	sink.Save(2, &id.leader)
	sink.Save(3, &id.since)
}

func (id *identity) StateLoad(_ context.Context, source state.Source) {
	source.Load(0, &id.all)
	source.Load(1, &id.tg)
	source.Load(2, &id.leader)
	source.Load(3, &id.since)
}

func (ids *identities) StateTypeName() string { return "runtime/gvisor/sentry.identities" }
func (ids *identities) StateFields() []string { return []string{"generation", "of"} }

func (ids *identities) StateSave(sink state.Sink) {
	sink.Save(0, &ids.generation)
	sink.Save(1, &ids.of)
}

func (ids *identities) StateLoad(_ context.Context, source state.Source) {
	source.Load(0, &ids.generation)
	source.Load(1, &ids.of)
}
