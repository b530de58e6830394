package fake

// An Op is a method of a runtime, for [Runtime.FailNext].
type Op string

// The operations that can be made to fail.
const (
	OpCreate      Op = "create"
	OpExec        Op = "exec"
	OpDial        Op = "dial"
	OpWaitCommand Op = "wait command"
	OpSignal      Op = "signal"
	OpProcesses   Op = "processes"
	OpStats       Op = "stats"
	OpDestroy     Op = "destroy"
	OpList        Op = "list"
	OpCheckpoint  Op = "checkpoint"
	OpRestore     Op = "restore"
	OpSaveFiles   Op = "save files"
	OpFreeze      Op = "freeze"
	OpThaw        Op = "thaw"
)

// FailNext makes the next call of op, on any sandbox, return err without any effect. Several faults of one op are returned in
// the order in which they were set.
func (r *Runtime) FailNext(op Op, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults[op] = append(r.faults[op], err)
}

// takeFault removes and returns the error that the next call of op must return, see FailNext; nil if there is none.
func (h *sharedState) takeFault(op Op) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.faults[op]) == 0 {
		return nil
	}
	err := h.faults[op][0]
	h.faults[op] = h.faults[op][1:]
	return err
}
