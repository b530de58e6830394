package protocol

// The methods of gVisor's control protocol that the daemon calls, with the type of the argument, and the files that are sent
// along.
const (
	MethodCheckpoint         = "containerManager.Checkpoint"         // argument SaveOpts; sends the three files of a checkpoint
	MethodCreateTraceSession = "containerManager.CreateTraceSession" // argument TraceSessionArgs; sends the sink's descriptor
	MethodExecuteAsync       = "containerManager.ExecuteAsync"       // argument ExecArgs; sends files for GuestFDs; returns the PID
	MethodPause              = "containerManager.Pause"              // freezes the sandbox
	MethodProcesses          = "containerManager.Processes"          // argument: the container's id; returns a list of Process
	MethodRead               = "Fs.Read"                             // argument ReadOpts; sends the file to write to
	MethodResume             = "containerManager.Resume"             // thaws the sandbox
	MethodSignal             = "containerManager.Signal"             // argument SignalArgs
	MethodTarRootfs          = "Fs.TarRootfsUpperLayer"              // argument TarOpts; sends the file to write to
	MethodWaitPID            = "containerManager.WaitPID"            // argument WaitPIDArgs; returns the status of wait(2)
	MethodWaitRestore        = "containerManager.WaitRestore"        // waits until all memory of a restored sandbox was read
)

// The types of arguments and results in this file contain only those fields of gVisor's types that the daemon uses, with the same
// names in JSON. All other fields have their zero values.

// ExecArgs describes a process to start.
type ExecArgs struct {
	Argv             []string `json:"argv"` // the program and its arguments
	Envv             []string `json:"envv"` // environment: KEY=value
	WorkingDirectory string   `json:"wd"`
	KUID, KGID       uint32   // uid and gid of the process, as the guest sees them
	Capabilities     *TaskCapabilities
	StdioIsPty       bool   // the standard streams are a pseudo-terminal
	GuestFDs         []int  // descriptors that the sent files have in the started process
	ContainerID      string // id of the sandbox
}

// TaskCapabilities are sets of capabilities with bit n for capability n.
type TaskCapabilities struct {
	PermittedCaps, EffectiveCaps, BoundingCaps uint64
}

// SaveOpts describes a checkpoint to be made. gVisor stores Metadata in the checkpoint; the daemon sets only CompressionKey.
type SaveOpts struct {
	Metadata                       map[string]string `json:"metadata"`                            // properties by name
	AppMFExcludeCommittedZeroPages bool              `json:"app_mf_exclude_committed_zero_pages"` // pages of zeroes are not written
	HavePagesFile                  bool              `json:"have_pages_file"`                     // memory is written to PagesFile
	Resume                         bool              // the sandbox continues after the checkpoint
}

// The key and value in SaveOpts.Metadata with which memory is written without compression.
const (
	CompressionKey  = "compression"
	CompressionNone = "none"
)

// The files of a checkpoint, in the order in which they are sent along.
const (
	StateFile         = "checkpoint.img" // state of gVisor's kernel
	PagesMetadataFile = "pages_meta.img" // which pages PagesFile contains
	PagesFile         = "pages.img"      // memory pages of the sandbox
)

// TarOpts describes an archive of the changes to the root file system.
type TarOpts struct{ ContainerID string }

// RootfsTarAnnotation is the annotation of a spec with the path of an archive that [MethodTarRootfs] wrote. A new sandbox starts
// with the changes in the archive.
const RootfsTarAnnotation = "dev.gvisor.tar.rootfs.upper"

// ReadOpts selects the file in the sandbox of which the beginning is read.
type ReadOpts struct {
	ContainerID string `json:"container_id"`
	Path        string `json:"path"` // absolute path in the sandbox
	Size        int64  `json:"size"` // maximum number of bytes to read
}

// Process describes a process of a sandbox, with its ids in the sandbox.
type Process struct {
	UID     uint32  `json:"uid"`
	PID     int32   `json:"pid"`
	PPID    int32   `json:"ppid"`
	Threads []int32 `json:"threads"` // ids of its threads
	Time    string  `json:"time"`    // CPU time as text with a unit: "120ms"
	Cmd     string  `json:"cmd"`     // name of the program
}

// WaitPIDArgs names a process to wait for.
type WaitPIDArgs struct {
	PID int32  // PID in the sandbox
	CID string // id of the container
}

// SignalArgs describes a signal to send.
type SignalArgs struct {
	CID   string     // id of the container
	Signo int32      // number of the signal
	PID   int32      // PID of a process in the sandbox
	Mode  SignalMode // which processes get the signal
}

// A SignalMode selects the processes that get a signal.
type SignalMode int

// The modes that the daemon uses.
const (
	SignalProcess         SignalMode = 0 // the process SignalArgs.PID
	SignalForegroundGroup SignalMode = 2 // the foreground process group of the terminal of the process SignalArgs.PID
)

// TraceSessionArgs describes a trace session of gVisor. The daemon uses sessions without events, to call Caisson's code in the
// sentry: the start of a session calls the constructor of each sink of it, with the sink's configuration and a descriptor.
type TraceSessionArgs struct {
	Config TraceSession
	Force  bool // replace an existing session
}

// TraceSession is the configuration of a trace session.
type TraceSession struct {
	Name  string `json:"name,omitempty"`
	Sinks []Sink `json:"sinks,omitempty"`
}

// TraceSessionName is the name of the only session that gVisor supports.
const TraceSessionName = "Default"

// Sink is the configuration of a sink: code in the sentry that gVisor calls when a trace session starts, and for its events.
type Sink struct {
	Name   string         `json:"name,omitempty"`   // WritersSink, SharingSink or ConnectionsSink
	Config map[string]any `json:"config,omitempty"` // arguments of the sink by name
}
