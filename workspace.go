package caisson

import (
	"context"
	"os"
	"time"
)

// WorkspacePrefix and the others begin the IDs of workspaces, reviews and receipts.
const (
	WorkspacePrefix = "ws"
	ReviewPrefix    = "rv"
	ReceiptPrefix   = "rc"
)

// A WorkspaceKind says what a sandbox works in. A clone of a repository is not one of these: see [RepoRequest].
type WorkspaceKind string

// The kinds of workspaces.
const (
	// WorkspaceOverlay shows the directory as it is and takes what is written into a layer of the sandbox's own.
	WorkspaceOverlay WorkspaceKind = "overlay"
	// WorkspaceCopy is the same with a copy of the directory made at the start, which later changes on the host do not reach.
	WorkspaceCopy WorkspaceKind = "copy"
	// WorkspaceDirect is the directory itself, writable. Nothing is reviewed. It must be asked for by name.
	WorkspaceDirect WorkspaceKind = "direct"
	// WorkspaceVolume is a [Volume], writable, which no host directory belongs to: nothing is reviewed or comes back.
	WorkspaceVolume WorkspaceKind = "volume"
)

// A SyncMode says how changes in a workspace get to the host's directory.
type SyncMode string

// The modes.
const (
	SyncSecure SyncMode = "secure"      // a person applies what they have reviewed
	SyncYolo   SyncMode = "yolo"        // what passes every check is applied every 30 s and at the end; the rest, and removals of most files, wait for a person
	SyncUnsafe SyncMode = "yolo-unsafe" // WorkspaceDirect
)

// WorkspaceState is where a workspace is in its life.
type WorkspaceState string

// The states of workspaces.
const (
	WorkspaceLive    WorkspaceState = "live"    // its sandbox is there
	WorkspaceResting WorkspaceState = "resting" // its sandbox is gone; its changes wait
	WorkspaceSettled WorkspaceState = "settled" // its sandbox is gone and nothing waits; it goes with its retention
)

// A Workspace is a host directory as one sandbox has it, with what was changed there. It outlives its sandbox.
type Workspace struct {
	ID      ID             `json:"id"`
	Account string         `json:"account"`
	Kind    WorkspaceKind  `json:"kind"`
	Mode    SyncMode       `json:"mode"`
	State   WorkspaceState `json:"state"`
	Source  string         `json:"source" doc:"The directory, as the caller called it"`
	Target  string         `json:"target" doc:"Where it is in the sandbox"`
	Sandbox ID             `json:"sandbox"`
	Run     ID             `json:"run,omitempty" doc:"The run that the sandbox was made for"`
	Agent   string         `json:"agent,omitempty"`

	// The directory on the host: found again by its path, and only if it still is this one.
	HostPath string `json:"-"`
	Device   uint64 `json:"-"`
	Inode    uint64 `json:"-"`
	UID      uint32 `json:"uid" doc:"Its owner's; what is applied becomes this user's"`
	GID      uint32 `json:"gid"`

	Files       int64    `json:"files" doc:"Entries in the directory when it was mounted"`
	Hidden      []string `json:"hidden,omitempty" doc:"Secret-looking files that the sandbox does not see; at most 1000"`
	HiddenCount int      `json:"hiddenCount,omitempty"`
	// Suspects are known by their names when the workspace is made. Those known by their content follow soon, in what
	// GetWorkspace returns; Search is nil until then.
	Suspects     []Suspect        `json:"suspects,omitempty" doc:"Files that the sandbox sees and that may contain secrets; at most 200. Lists have only those known by their names"`
	SuspectCount int              `json:"suspectCount,omitempty"`
	Search       *WorkspaceSearch `json:"search,omitempty" doc:"What was searched for secrets; absent while that is under way, and in lists"`
	Changes      int              `json:"changes" doc:"Changes that wait, when somebody last looked"`
	Warning      string           `json:"warning,omitempty" doc:"What people should know of it"`
	CreatedAt    time.Time        `json:"createdAt"`
	EndedAt      time.Time        `json:"endedAt,omitzero" doc:"When its sandbox went"`
	SyncedAt     time.Time        `json:"syncedAt,omitzero"`
}

// A Suspect is a file that may contain a secret.
type Suspect struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// A WorkspaceSearch says how far the files of a workspace were searched for secrets.
type WorkspaceSearch struct {
	Searched   int64 `json:"searched" doc:"Files"`
	Unsearched int64 `json:"unsearched" doc:"Files that are larger than 256 KiB, beyond 5,000 files, 32 MiB or 10 s, changed or unreadable, or in .git or node_modules"`
}

// A WorkspaceRequest asks for a workspace in a sandbox or run.
type WorkspaceRequest struct {
	Kind   WorkspaceKind `json:"kind,omitempty" enum:"overlay,copy,direct,volume," doc:"Default overlay"`
	Mode   SyncMode      `json:"mode,omitempty" enum:"secure,yolo,yolo-unsafe," doc:"Default secure"`
	Source string        `json:"source" doc:"What people call the directory; of the kind volume, the volume's name, which is made if there is none"`
	Target string        `json:"target,omitempty" doc:"Where it is in the sandbox; default /workspace"`
	Show   []string      `json:"show,omitempty" doc:"Patterns of secret-looking names that are not to be hidden after all"`
	// Directory is the directory, opened by the client with its own rights and only over the unix socket. The callee owns and
	// closes it.
	Directory Handle `json:"-"`
}

// The kinds of a change.
const (
	ChangeAdded    = "added"
	ChangeModified = "modified" // content, and perhaps mode
	ChangeRemoved  = "removed"
	ChangeRenamed  = "renamed" // from OldPath, and perhaps modified
	ChangeMode     = "mode"    // of permission bits only
	ChangeType     = "type"    // a file became a symlink, or the like
)

// The verdicts on a change.
const (
	VerdictPass  = "pass"  // may be applied
	VerdictAsk   = "ask"   // a person may apply it who has seen why; never automatically
	VerdictDeny  = "deny"  // is never applied
	VerdictClash = "clash" // the host's file has changed, too, and the two cannot be merged; see Merge
)

// A Change is one difference between a workspace and the host's directory as it was when the workspace began.
type Change struct {
	Path    string `json:"path" doc:"Relative, with slashes. A name that is not UTF-8 is shown with escapes, and denied"`
	Kind    string `json:"kind" enum:"added,modified,removed,renamed,mode,type"`
	OldPath string `json:"oldPath,omitempty"`
	Type    string `json:"type" enum:"file,dir,symlink,fifo,socket,device,none" doc:"Of what is there now; none if removed"`
	OldType string `json:"oldType" enum:"file,dir,symlink,fifo,socket,device,none"`
	Mode    uint32 `json:"mode,omitempty" doc:"Permission bits, with setuid, setgid and sticky"`
	OldMode uint32 `json:"oldMode,omitempty"`
	Size    int64  `json:"size,omitempty"`
	OldSize int64  `json:"oldSize,omitempty"`
	Link    string `json:"link,omitempty" doc:"Where a symlink leads"`
	Process string `json:"process,omitempty" doc:"Who last wrote it, as the sandbox's kernel saw it: pid and command"`
	// Hash names what is to be applied: what was reviewed is what is applied. It covers type, mode and content.
	Hash    string    `json:"hash"`
	Binary  bool      `json:"binary,omitempty"`
	Added   int       `json:"added,omitempty" doc:"Lines"`
	Removed int       `json:"removed,omitempty"`
	Verdict string    `json:"verdict" enum:"pass,ask,deny,clash"`
	Finding []Finding `json:"findings,omitempty"`
	// Moved says that the host's file has changed since the workspace began. Merge then says whether the two changes can be
	// put together without one overwriting the other.
	Moved bool   `json:"moved,omitempty"`
	Merge bool   `json:"merge,omitempty" doc:"Whether the change can be merged into what the host has now; Hash is the merged file's"`
	Patch string `json:"patch,omitempty" doc:"Unified diff, if it was asked for and is text; of a merge or a clash, against what the host has now"`
}

// A Finding is what a check says of a change.
type Finding struct {
	Check   string `json:"check" enum:"path,name,type,size,link,mode,collision,secret,text,removal,command,host"`
	Verdict string `json:"verdict" enum:"pass,ask,deny,clash"`
	Message string `json:"message"`
	Line    int    `json:"line,omitempty"`
}

// A DiffRequest asks what has changed. Zero fields choose everything.
type DiffRequest struct {
	Only  []string `json:"only,omitempty" doc:"Glob patterns of paths; ** stands for any directories"`
	Patch bool     `json:"patch,omitempty" doc:"With patches"`
	// Freeze keeps a copy of what is shown, for it to be applied.
	Freeze bool `json:"freeze,omitempty"`
}

// A Diff is what has changed in a workspace, and whether it may be applied.
type Diff struct {
	Workspace *Workspace `json:"workspace"`
	Review    ID         `json:"review,omitempty" doc:"Names the frozen copy, for a sync; it is kept for a day"`
	At        time.Time  `json:"at"`
	Changes   []Change   `json:"changes"`
	Cut       bool       `json:"cut,omitempty" doc:"Whether there are more changes than are shown; what is not shown cannot be applied"`
	Checks    []string   `json:"checks,omitempty" doc:"What was checked"`
}

// A Selection is a change that somebody wants applied.
type Selection struct {
	Path  string `json:"path"`
	Hash  string `json:"hash" doc:"As reviewed"`
	Hunks []int  `json:"hunks,omitempty" doc:"Of its patch, from 0; empty means the whole change"`
}

// A SyncRequest applies changes of a review to the host's directory: all of them or none.
type SyncRequest struct {
	Review ID          `json:"review,omitempty" doc:"Empty with auto"`
	Apply  []Selection `json:"apply,omitempty"`
	Drop   []string    `json:"drop,omitempty" doc:"Paths whose changes are undone in the workspace; only when its sandbox is not running"`
	Auto   bool        `json:"auto,omitempty" doc:"Review and apply whatever passes every check"`
	Only   []string    `json:"only,omitempty" doc:"With auto: glob patterns of paths"`
	// Asked says that a person has seen why the checks asked.
	Asked bool `json:"asked,omitempty"`
	// Directory is the workspace's directory, opened by the client with its own rights: who may not write there applies nothing.
	Directory Handle `json:"-"`
}

// The states of receipts.
const (
	ReceiptApplied = "applied"
	ReceiptUndone  = "undone"
)

// A SyncReceipt says what was applied, by whom, after which checks.
type SyncReceipt struct {
	ID        ID             `json:"id"`
	Account   string         `json:"account"`
	Workspace ID             `json:"workspace"`
	Sandbox   ID             `json:"sandbox,omitempty"`
	Run       ID             `json:"run,omitempty"`
	By        string         `json:"by"`
	Mode      SyncMode       `json:"mode"`
	State     string         `json:"state" enum:"applied,undone"`
	At        time.Time      `json:"at"`
	UndoneAt  time.Time      `json:"undoneAt,omitzero"`
	Checks    []string       `json:"checks"`
	Entries   []ReceiptEntry `json:"entries"`
	Auto      bool           `json:"auto,omitempty" doc:"Whether whatever passes every check was applied, and nobody has chosen it"`
	Waiting   int            `json:"waiting,omitempty" doc:"Changes that were not applied because a check failed or the host has moved"`
	Held      string         `json:"held,omitempty" doc:"With auto: that removals were not applied because they are most of the directory's files, and how to apply them"`
}

// A ReceiptEntry is one path that was written.
type ReceiptEntry struct {
	Path   string `json:"path"`
	Kind   string `json:"kind"`
	Before string `json:"before,omitempty" doc:"Hash of what was there; empty: nothing"`
	After  string `json:"after,omitempty" doc:"Hash of what is there now; empty: nothing"`
	Merged bool   `json:"merged,omitempty"`
}

// A WorkspaceFilter chooses among workspaces and receipts. Zero fields choose everything.
type WorkspaceFilter struct {
	States    []WorkspaceState
	Run       ID
	Sandbox   ID
	Workspace ID // of receipts
	// Before is the id of the last one of the previous page; pages go from new to old. Limit is at most 1000; 0 means 100.
	Before ID
	Limit  int
}

// Workspaces is the gate between workspaces and the host's directories as its callers see it. ref is the id of a workspace, or of
// the sandbox or run that has it. All methods are safe for concurrent use.
type Workspaces interface {
	GetWorkspace(ctx context.Context, ref string) (*Workspace, error)
	ListWorkspaces(ctx context.Context, f WorkspaceFilter) (page []*Workspace, more bool, err error)
	// Diff says what has changed.
	Diff(ctx context.Context, ref string, req DiffRequest) (*Diff, error)
	// Sync applies changes. Conflict if what was reviewed is not what is there any more, or the host has moved.
	Sync(ctx context.Context, ref string, req SyncRequest) (*SyncReceipt, error)
	// Reset drops all changes of a workspace whose sandbox is not running.
	Reset(ctx context.Context, ref string) (*Workspace, error)
	// RemoveWorkspace forgets a workspace whose sandbox is gone, with all its changes.
	RemoveWorkspace(ctx context.Context, ref string) error
	ListReceipts(ctx context.Context, f WorkspaceFilter) (page []*SyncReceipt, more bool, err error)
	GetReceipt(ctx context.Context, id ID) (*SyncReceipt, error)
	// Undo puts back what a receipt has changed: all or nothing. Conflict if the host has moved since. dir is as in [SyncRequest].
	Undo(ctx context.Context, id ID, dir Handle) (*SyncReceipt, error)
}

// WorkspaceStore holds workspaces and receipts.
type WorkspaceStore interface {
	Insert(ctx context.Context, w *Workspace) error
	// Get finds a workspace by its id, or the newest of the sandbox or run with that id.
	Get(ctx context.Context, in Scope, ref string) (*Workspace, error)
	List(ctx context.Context, in Scope, f WorkspaceFilter) (page []*Workspace, more bool, err error)
	// Update is as in [Table].
	Update(ctx context.Context, in Scope, id ID, change func(*Workspace) error) (*Workspace, error)
	// Delete removes a workspace with its receipts.
	Delete(ctx context.Context, in Scope, id ID) error
	InsertReceipt(ctx context.Context, r *SyncReceipt) error
	GetReceipt(ctx context.Context, in Scope, id ID) (*SyncReceipt, error)
	ListReceipts(ctx context.Context, in Scope, f WorkspaceFilter) (page []*SyncReceipt, more bool, err error)
	UpdateReceipt(ctx context.Context, in Scope, id ID, change func(*SyncReceipt) error) (*SyncReceipt, error)
}

// WorkspaceLayers is how the lifecycle of sandboxes uses workspaces. All methods are safe for concurrent use.
type WorkspaceLayers interface {
	// Lay makes the workspace of a new sandbox: its layers, what is hidden, and the record of what the directory was like. It
	// takes as long as a walk over the directory. The callee closes req.Directory.
	Lay(ctx context.Context, sb *Sandbox, req WorkspaceRequest) (*Workspace, error)
	// Open returns the mount for a start of the sandbox. The caller closes its descriptors. A Conflict says that the directory
	// is not there any more.
	Open(ctx context.Context, id ID) (RuntimeMount, error)
	// Written opens the directory that has what the sandbox has written to the workspace, to count it.
	Written(id ID) (*os.File, error)
	// Capture writes what the workspace's layer holds now into the new directory dir. The sandbox stands still meanwhile, or does
	// not run.
	Capture(ctx context.Context, id ID, dir string) error
	// Leave says that the sandbox is gone. Idempotent.
	Leave(ctx context.Context, id ID) error
}
