package fake

// An Op is a method of a runtime, for [Runtime.FailNext].
type Op string

// The operations that can be made to fail.
const (
	OpCreate      Op = "create"
	OpExec        Op = "exec"
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

// FailNext makes the next call of op, on any sandbox, return err and do nothing else. Several faults of one op are used
// up in the order they were set. A failed OpCreate or OpRestore leaves nothing behind, as the contract says.
func (r *Runtime) FailNext(op Op, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults[op] = append(r.faults[op], err)
}

// fault uses up the next fault of op.
func (h *host) fault(op Op) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.faults[op]) == 0 {
		return nil
	}
	err := h.faults[op][0]
	h.faults[op] = h.faults[op][1:]
	return err
}
