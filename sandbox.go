package caisson

import (
	"context"
	"encoding/json"
	"regexp"
	"time"
)

// A Sandbox is one isolated machine-like environment.
type Sandbox struct {
	ID       ID     `json:"id"`
	Account  string `json:"account"`
	Name     string `json:"name,omitempty" doc:"Unique within the account among sandboxes that exist; may be used instead of the id"`
	Template string `json:"template" doc:"Name of the template it was made from"`
	State    State  `json:"state"`
	// Reason is a sentence with the reason of the state failed, or why a stopped sandbox ended ("time limit of 1h reached").
	Reason string            `json:"reason,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Spec   Spec              `json:"spec"`
	// Rootfs is only in the store, never in responses of the API.
	Rootfs Rootfs `json:"rootfs,omitzero"`
	// Plan is the plan by which the sandbox is being created; nil once that is done. It is never in responses of the API.
	Plan *Plan `json:"plan,omitempty"`
	// Exit is how the sandbox's command ended; nil while it runs or if there is none.
	Exit      *ExitStatus `json:"exit,omitempty"`
	Parent    ID          `json:"parent,omitempty" doc:"For a fork: the snapshot or sandbox it was forked from"`
	Node      string      `json:"node" doc:"The machine that it is on"`
	Build     string      `json:"build" doc:"The programs that it runs with, by content; a daemon that does not work with them may list, stop and remove it"`
	Pooled    bool        `json:"pooled,omitempty" doc:"In its template's warm pool; not yet claimed"`
	CreatedAt time.Time   `json:"createdAt"`
	ChangedAt time.Time   `json:"changedAt" doc:"When State last changed"`
	// Assigned is the run that the sandbox serves. If it is nil, model calls are charged to the sandbox itself.
	Assigned *Assignment `json:"assigned,omitempty"`
	PauseAt  *time.Time  `json:"pauseAt,omitempty" doc:"When its ttl ends and it is paused"`
	RemoveAt *time.Time  `json:"removeAt,omitempty" doc:"When its hard ttl ends and it is removed"`
	WakeAt   *time.Time  `json:"wakeAt,omitempty" doc:"When it is woken or resumed if it is suspended or paused then"`
	// IdleSince is only set if the sandbox has an AutoPause.
	IdleSince *time.Time `json:"idleSince,omitempty" doc:"For a suspended or paused sandbox: its last use, from which autoPause counts"`
	// Announced has those values of PauseAt and RemoveAt that an event has announced in advance. It is never in responses of
	// the API.
	Announced Times `json:"announced,omitempty"`
	// SharedRandomness names restored programs that may draw the same secrets as another fork: at most 16, then a count of more.
	SharedRandomness []string `json:"sharedRandomness,omitempty" doc:"For a fork with memory: programs in it that may draw the same keys and identifiers as in what was forked, and in other forks; start them again before they make any"`
}

// Times are points in time that are only in the store, never in responses of the API.
type Times []time.Time

// PlanVersion is the version of the plans that this build stores.
const PlanVersion = 1

// A Plan contains the information that is needed to undo the creation of a sandbox after a crash. A daemon ignores plans with a
// Version that is greater than its own.
type Plan struct {
	Version   int           `json:"version"`
	From      ID            `json:"from,omitempty"`      // snapshot or sandbox that is forked; "" for none
	Capture   ID            `json:"capture,omitempty"`   // the temporary capture of From that the forks are made of
	Memory    bool          `json:"memory,omitempty"`    // whether memory is restored
	Start     bool          `json:"start,omitempty"`     // whether the processes of the sandbox are started
	Workspace WorkspaceKind `json:"workspace,omitempty"` // the requested kind of workspace; "" for none
}

// A Spec contains everything that defines how a sandbox behaves: its template with the request's changes, resolved.
// Except for the policy, the services, the time limits and autoPause, it is immutable.
type Spec struct {
	Image     string            `json:"image" doc:"host, an OCI reference, or dir:/tar: with a digest"`
	Digest    string            `json:"digest" doc:"sha256 digest of the root file system"`
	Command   []string          `json:"command,omitempty" doc:"Command that runs from the start; empty means none: the sandbox waits for exec"`
	Env       map[string]string `json:"env,omitempty"`
	Workdir   string            `json:"workdir"`
	User      string            `json:"user" doc:"name, uid, or uid:gid inside the sandbox"`
	Resources Resources         `json:"resources"`
	Mounts    []Mount           `json:"mounts,omitempty"`
	TTL       Duration          `json:"ttl,omitempty" doc:"Pause after this long; 0 is never"`
	HardTTL   Duration          `json:"hardTtl,omitempty" doc:"Remove after this long; 0 is never"`
	AutoPause AutoPause         `json:"autoPause,omitzero" doc:"What happens while it is not in use; can change later"`
	// FinalSnapshot means that a snapshot is taken before the hard TTL removes the sandbox. No snapshot is taken if a request
	// removes it.
	FinalSnapshot bool        `json:"finalSnapshot,omitempty" doc:"Take a snapshot before the hard ttl removes it"`
	Policy        Policy      `json:"policy,omitzero" doc:"Egress policy; can change later"`
	Models        *ModelGrant `json:"models,omitempty" doc:"Its use of the model gateway; none if absent"`
	// Randomness is that of [Warm], for the sandbox of an agent: the mechanism by which forks of a snapshot of the sandbox
	// draw different random numbers.
	Randomness string `json:"randomness,omitempty" enum:"kernel,openssl,"`
	// Workspace is the id of the sandbox's workspace; "" if it has none.
	Workspace ID `json:"workspace,omitempty"`
	// WorkspaceAt is the mount point of the sandbox's workspace. If the sandbox has no workspace, it is the mount point of an empty
	// directory, a placeholder for the workspaces of its forks.
	WorkspaceAt string `json:"workspaceAt,omitempty"`
	// Volume is the attached volume; nil if there is none.
	Volume *VolumeMount `json:"volume,omitempty"`
	// Services are the services of the sandbox by id; they can change later.
	Services []Service `json:"services,omitempty"`
	// ServicesRevision is incremented with each change of Services.
	ServicesRevision int64 `json:"servicesRevision,omitempty"`
}

// An AutoPause contains the times, counted from the last use of a sandbox, after which it is suspended, paused and stopped. 0
// means never.
//
// Uses are exec sessions, attached terminals, connections and requests from outside, operations on the sandbox's files, and runs.
// The activity of programs in the sandbox does not count as a use.
type AutoPause struct {
	Suspend Duration `json:"suspend,omitempty" yaml:"suspend" doc:"Suspend it after this long without use: frozen, its memory kept; 0 is never"`
	Pause   Duration `json:"pause,omitempty" yaml:"pause" doc:"Pause it after this long without use: its memory moves to disk; 0 is never"`
	Stop    Duration `json:"stop,omitempty" yaml:"stop" doc:"Stop it after this long without use: only its files are kept; 0 is never"`
}

// Resources are hard limits of a sandbox. In a request or template, zero means the value of [DefaultResources].
type Resources struct {
	CPUs      float64 `json:"cpus,omitempty" yaml:"cpus" doc:"Processor time, in cores"`
	Memory    Size    `json:"memory,omitempty" yaml:"memory" doc:"Memory of all processes, file cache of /tmp and Caisson's own share included, in bytes"`
	PIDs      int     `json:"pids,omitempty" yaml:"pids" doc:"Processes and threads of one user inside the sandbox"`
	Disk      Size    `json:"disk,omitempty" yaml:"disk" doc:"Bytes that may be written to the root file system; a sandbox that has written more to its workspace is stopped"`
	OpenFiles int     `json:"openFiles,omitempty" yaml:"openFiles" doc:"Open files of one process"`
}

// UnmarshalJSON returns an Invalid error for an explicit 0 in a field in which 0 means the default.
func (r *Resources) UnmarshalJSON(b []byte) error {
	return r.unmarshal(func(v any) error { return json.Unmarshal(b, v) })
}

// UnmarshalYAML is [Resources.UnmarshalJSON] for YAML.
func (r *Resources) UnmarshalYAML(decode func(any) error) error { return r.unmarshal(decode) }

// unmarshal decodes r with decode, for the formats JSON and YAML, and rejects an explicit 0 where 0 means the default.
func (r *Resources) unmarshal(decode func(any) error) error {
	type plain Resources // has no UnmarshalJSON and UnmarshalYAML, which would call unmarshal again
	if err := decode((*plain)(r)); err != nil {
		return err
	}
	return rejectZero(decode, map[string]bool{
		"cpus": r.CPUs == 0, "memory": r.Memory == 0, "pids": r.PIDs == 0, "disk": r.Disk == 0, "openFiles": r.OpenFiles == 0,
	})
}

// DefaultResources returns the limits of a sandbox whose request has none.
func DefaultResources() Resources {
	return Resources{CPUs: 2, Memory: 2 << 30, PIDs: 1024, Disk: 10 << 30, OpenFiles: 65536}
}

// labelName is the form of the names of labels.
var labelName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$`)

// CheckLabels returns an Invalid error about field if there are too many labels, or one has an invalid name or too long a value.
func CheckLabels(field string, labels map[string]string) error {
	if len(labels) > 64 {
		return Invalidf(field, "more than 64 labels")
	}
	for k, v := range labels {
		if !labelName.MatchString(k) {
			return Invalidf(field, "%.70q is not the name of a label", k)
		}
		if len(v) > 1024 {
			return Invalidf(field+"."+k, "the value is longer than 1024 bytes")
		}
	}
	return nil
}

// A Mount mounts a host directory in a sandbox. The directory is passed as a descriptor that the client opened with its
// own rights (see Directories in [CreateRequest]); Source is only the caller's name for it.
type Mount struct {
	Source   string `json:"source" yaml:"source"`
	Target   string `json:"target" yaml:"target" doc:"Absolute path inside the sandbox"`
	Writable bool   `json:"writable,omitempty" yaml:"writable"`
}

// A VolumeMount is the attached volume of a sandbox, and its mount point.
type VolumeMount struct {
	ID     ID     `json:"id"`
	Name   string `json:"name"`
	Target string `json:"target" doc:"Absolute path inside the sandbox"`
}

// A CreateRequest is the input of [Sandboxes.Create]. Zero fields mean the template's value.
type CreateRequest struct {
	Template  string            `json:"template,omitempty" doc:"Template name; empty means host"`
	Image     string            `json:"image,omitempty" doc:"Image instead of the template's"`
	Name      string            `json:"name,omitempty"`
	Snapshot  ID                `json:"snapshot,omitempty" doc:"Start from this snapshot instead of the template"`
	Command   []string          `json:"command,omitempty"`
	Env       map[string]string `json:"env,omitempty" doc:"Added to the template's"`
	Workdir   string            `json:"workdir,omitempty"`
	User      string            `json:"user,omitempty"`
	Resources Resources         `json:"resources,omitzero"`
	Mounts    []Mount           `json:"mounts,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	TTL       *Duration         `json:"ttl,omitempty"`
	HardTTL   *Duration         `json:"hardTtl,omitempty"`
	AutoPause *AutoPause        `json:"autoPause,omitempty" doc:"Instead of the template's or snapshot's"`
	// FinalSnapshot means that a snapshot is taken before the hard TTL removes the sandbox; nil means the value of the template or
	// snapshot.
	FinalSnapshot *bool       `json:"finalSnapshot,omitempty" doc:"Take a snapshot before the hard ttl removes it"`
	NoStart       bool        `json:"noStart,omitempty" doc:"Only create; start later"`
	NoPool        bool        `json:"noPool,omitempty" doc:"Do not take a sandbox from the warm pool"`
	Policy        *Policy     `json:"policy,omitempty" doc:"Instead of the template's"`
	Models        *ModelGrant `json:"models,omitempty" doc:"Instead of the template's"`
	Services      []Service   `json:"services,omitempty" doc:"Added to the template's, or instead of those with the same ids"`
	Assigned      *Assignment `json:"-"` // the run that the sandbox is created for
	// KeepRandomness leaves restored processes their PIDs, so that OpenSSL's random generators in them are not seeded again.
	KeepRandomness bool `json:"keepRandomness,omitempty" doc:"With a snapshot: as for a fork"`
	// Randomness is the mechanism by which forks of the sandbox's snapshots draw different random numbers. Only the engine sets it.
	Randomness string `json:"-"`
	// Directories are the opened Mounts[i].Source, in order; only over the unix socket. The callee owns and closes them.
	Directories []Handle `json:"-"`
	// Workspace requests a workspace. It is a host directory, which can be requested only over the unix socket and which the sandbox
	// changes only in a layer of its own until the changes are applied, or a volume.
	Workspace *WorkspaceRequest `json:"workspace,omitempty"`
	// Placeholder is the path of an empty directory that is mounted in the sandbox. Forks of a snapshot of the sandbox can have a
	// workspace mounted there instead.
	Placeholder string `json:"-"`
}

// An ExtendRequest changes when a sandbox is paused, removed and woken, and its AutoPause. nil leaves a value unchanged.
type ExtendRequest struct {
	TTL       *Duration  `json:"ttl,omitempty" doc:"Pause after this time, counted from now; 0s means never"`
	HardTTL   *Duration  `json:"hardTtl,omitempty" doc:"Remove after this time, counted from now; 0s means never"`
	AutoPause *AutoPause `json:"autoPause,omitempty" doc:"What happens while it is not in use; {} means nothing"`
	WakeAt    *time.Time `json:"wakeAt,omitempty" doc:"When it is woken or resumed if it is suspended or paused then; 0001-01-01T00:00:00Z means never"`
}

// A Handle is an open descriptor of a host directory or file that a local client passed.
type Handle interface {
	Fd() uintptr
	Close() error
}

// A Filter selects objects. Zero fields select everything.
type Filter struct {
	States []State
	Labels map[string]string
	Name   string
	// After is the ID, or the name of one without ID, of the last object of the previous page, which may no longer exist.
	// Limit is the size of a page, at most 1000; 0 means 100.
	After ID
	Limit int
}

// Sandboxes is the service that manages the lifecycle of sandboxes: the HTTP API serves it, the client implements it.
//
// Every method acts for the [Caller] in ctx. ref is a sandbox's ID or name. Errors: NotFound if the caller's account
// has no such sandbox, Conflict with a sentence about what is possible if its state does not allow the change, Invalid
// with a field for malformed requests, Exhausted if a limit is reached, Unavailable if the host cannot do it now. All
// methods are safe for concurrent use; changes of one sandbox are serialised, and a change that arrives while another
// is in progress returns Conflict, except Remove, which waits.
type Sandboxes interface {
	// Create creates a sandbox and starts it unless NoStart is set. It returns when the sandbox is running.
	Create(ctx context.Context, req CreateRequest) (*Sandbox, error)
	Get(ctx context.Context, ref string) (*Sandbox, error)
	// List returns one page of sandboxes, oldest first, and whether there are more.
	List(ctx context.Context, f Filter) (page []*Sandbox, more bool, err error)
	// Start starts a created or stopped sandbox. A stopped sandbox gets its files back, but not its memory.
	Start(ctx context.Context, ref string) (*Sandbox, error)
	// Stop ends every process: SIGTERM first, SIGKILL after grace. Files are kept.
	Stop(ctx context.Context, ref string, grace time.Duration) (*Sandbox, error)
	// Pause moves memory and files to disk and frees all other resources. Exec sessions end; the command, and processes
	// in a session of their own (setsid), continue at Resume.
	Pause(ctx context.Context, ref string) (*Sandbox, error)
	Resume(ctx context.Context, ref string) (*Sandbox, error)
	// Suspend freezes every process. The sandbox keeps its memory and uses no CPU time; Wake thaws it.
	Suspend(ctx context.Context, ref string) (*Sandbox, error)
	Wake(ctx context.Context, ref string) (*Sandbox, error)
	// Extend changes the times at which a sandbox is paused, removed and woken, and its [AutoPause].
	Extend(ctx context.Context, ref string, req ExtendRequest) (*Sandbox, error)
	// Remove ends a sandbox in any state and deletes all its data. NotFound if it does not exist.
	Remove(ctx context.Context, ref string) error
}
