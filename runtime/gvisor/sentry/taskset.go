package sentry

import (
	"fmt"
	"reflect"
	"unsafe"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sync"
)

// gVisor looks up every PID that a guest uses, in a system call or below /proc, in one table. A second PID for a thread group
// is a second entry in that table. The table is the unexported field tasks of [kernel.PIDNamespace], and its lock the field mu
// of [kernel.TaskSet]; these are the offsets of the two fields. When the program starts, fieldOffset checks the fields' types.
var (
	tasksOffset = fieldOffset[kernel.PIDNamespace, map[kernel.ThreadID]*kernel.Task]("tasks")
	lockOffset  = fieldOffset[kernel.TaskSet, taskSetLock]("mu")
)

// taskSetLock has the same fields as the type of the field mu of [kernel.TaskSet], its lock.
type taskSetLock struct{ mu sync.RWMutex }

// fieldOffset returns the offset of the field name in the structure S. It panics if the type of the field is neither F nor a
// structure with the same fields as F, which means that this package does not support the version of gVisor.
func fieldOffset[S, F any](name string) uintptr {
	s, want := reflect.TypeFor[S](), reflect.TypeFor[F]()
	f, ok := s.FieldByName(name)
	if !ok || f.Type != want && !sameFields(f.Type, want) {
		panic(fmt.Sprintf("gVisor's %s has no field %s that is a %s", s, name, want))
	}
	return f.Offset
}

// sameFields reports whether two structures have fields with the same names and types, including unexported ones.
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

// taskTable returns the namespace's table of tasks by PID. The caller must hold the lock of the task set to write to the table.
func taskTable(ns *kernel.PIDNamespace) map[kernel.ThreadID]*kernel.Task {
	return *(*map[kernel.ThreadID]*kernel.Task)(unsafe.Add(unsafe.Pointer(ns), tasksOffset))
}

// lockTasks locks the task set for writing and returns the function that unlocks it.
func lockTasks(ts *kernel.TaskSet) (unlock func()) {
	l := (*taskSetLock)(unsafe.Add(unsafe.Pointer(ts), lockOffset))
	l.mu.Lock()
	return l.mu.Unlock
}
