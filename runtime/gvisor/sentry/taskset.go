package sentry

import (
	"fmt"
	"reflect"
	"unsafe"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sync"
)

// gVisor looks up every pid that a guest names, in a system call or below /proc, in one table. A second name for a thread
// group is a second entry in it. The table and its lock are not exported; these are where they are, checked against the
// types that this program is built with before anything is run.
var (
	tasksOffset = fieldOf[kernel.PIDNamespace, map[kernel.ThreadID]*kernel.Task]("tasks")
	lockOffset  = fieldOf[kernel.TaskSet, taskSetLock]("mu")
)

// taskSetLock is what kernel.TaskSet's lock consists of.
type taskSetLock struct{ mu sync.RWMutex }

// fieldOf returns where in S the field is. A type that is not F, or does not consist of the same, ends the program: the
// build is with a gVisor that this package was not made for.
func fieldOf[S, F any](name string) uintptr {
	s, want := reflect.TypeFor[S](), reflect.TypeFor[F]()
	f, ok := s.FieldByName(name)
	if !ok || f.Type != want && !sameFields(f.Type, want) {
		panic(fmt.Sprintf("gVisor's %s has no field %s that is a %s", s, name, want))
	}
	return f.Offset
}

// sameFields reports whether two structures have fields of the same names and types, also if those are not exported.
func sameFields(a, b reflect.Type) bool {
	if a.Kind() != reflect.Struct || b.Kind() != reflect.Struct || a.NumField() != b.NumField() {
		return false
	}
	for i := range a.NumField() {
		if a.Field(i).Name != b.Field(i).Name || a.Field(i).Type != b.Field(i).Type {
			return false
		}
	}
	return true
}

// tasksOf is the namespace's table. Whoever writes to it has locked the task set.
func tasksOf(ns *kernel.PIDNamespace) map[kernel.ThreadID]*kernel.Task {
	return *(*map[kernel.ThreadID]*kernel.Task)(unsafe.Add(unsafe.Pointer(ns), tasksOffset))
}

// lockTasks locks the task set for writing and returns what unlocks it.
func lockTasks(ts *kernel.TaskSet) (unlock func()) {
	l := (*taskSetLock)(unsafe.Add(unsafe.Pointer(ts), lockOffset))
	l.mu.Lock()
	return l.mu.Unlock
}
