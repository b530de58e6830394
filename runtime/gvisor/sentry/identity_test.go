package sentry

import (
	"slices"
	"testing"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// TestNames checks that no name equals a PID, that all names are different, and that a futex can contain each.
func TestNames(t *testing.T) {
	const futexTID = 1<<30 - 1
	seen := map[kernel.ThreadID]bool{}
	for _, pid := range []kernel.ThreadID{1, 2, 300, kernel.TasksLimit - 1, kernel.TasksLimit} {
		for _, g := range []int32{1, 2, 3, maxGeneration - 1, maxGeneration} {
			n := additionalPID(pid, g)
			if n <= kernel.TasksLimit || n > futexTID || seen[n] {
				t.Errorf("pid %d is called %d in generation %d", pid, n, g)
			}
			seen[n] = true
		}
	}
}

// TestGenerations checks that each generation differs from the previous one, also after maxGeneration.
func TestGenerations(t *testing.T) {
	var ids identities
	for range 2*maxGeneration + 3 {
		before := ids.generation
		ids.nextGeneration()
		if ids.generation == before || ids.generation < 1 || ids.generation > maxGeneration {
			t.Fatalf("%d comes after %d", ids.generation, before)
		}
	}
}

// TestManyRestores checks that the number of a group's generations is limited, and that the first and the last one are kept.
func TestManyRestores(t *testing.T) {
	var id identity
	kept := map[int32]bool{}
	for g := int32(3); g < 100; g++ {
		kept[g] = true
		if d := id.addGeneration(g); d != 0 {
			if !kept[d] {
				t.Fatalf("%d is given up and was not there", d)
			}
			delete(kept, d)
		}
		if len(id.generations) > maxGenerations || len(kept) != len(id.generations) || id.generations[0] != 3 || !slices.Contains(id.generations, g) || !slices.IsSorted(id.generations) {
			t.Fatalf("in generation %d it keeps %v", g, id.generations)
		}
	}
}

func TestWhatIsTold(t *testing.T) {
	parent, elder, younger, stranger := new(kernel.ThreadGroup), new(kernel.ThreadGroup), new(kernel.ThreadGroup), new(kernel.ThreadGroup)
	ids := &identities{generation: 4, byGroup: map[*kernel.ThreadGroup]*identity{
		parent: {generations: []int32{1, 4}}, elder: {generations: []int32{1, 4}}, younger: {generations: []int32{4}},
	}}
	const pid = 7
	for _, c := range []struct {
		what      string
		got, want kernel.ThreadID
	}{
		{"the parent of itself", ids.currentPID(parent, pid), additionalPID(pid, 4)},
		{"a new process of itself", ids.currentPID(stranger, pid), pid},
		{"a child as old as its parent", ids.parentPID(elder, parent, pid), pid},
		{"a child born in generation 1 to 3", ids.parentPID(younger, parent, pid), additionalPID(pid, 1)},
		{"a new child", ids.parentPID(stranger, parent, pid), additionalPID(pid, 4)},
		{"a child of a new process", ids.parentPID(stranger, stranger, pid), pid},
	} {
		if c.got != c.want {
			t.Errorf("%s is told %d, want %d", c.what, c.got, c.want)
		}
	}
}
