package caisson

import (
	"context"
	"os"
	"time"
)

// WorkspacePrefix, ReviewPrefix and ReceiptPrefix are the prefixes of the IDs of workspaces, reviews and receipts.
const (
	WorkspacePrefix = "ws"
	ReviewPrefix    = "rv"
	ReceiptPrefix   = "rc"
)

// A WorkspaceKind is the kind of directory that a sandbox works in. Clones of repositories have no WorkspaceKind, see
// [RepoRequest].
type WorkspaceKind string

// The kinds of workspaces.
const (
	// WorkspaceOverlay shows the directory as it is, and writes changes to a layer of the sandbox.
	WorkspaceOverlay WorkspaceKind = "overlay"
	// WorkspaceCopy shows a copy of the directory that is made at the start, and writes changes to a layer of the sandbox. Later
	// changes of the directory on the host are not visible.
	WorkspaceCopy WorkspaceKind = "copy"
	// WorkspaceDirect is the directory itself, writable. Changes are not reviewed. It must be requested explicitly.
	WorkspaceDirect WorkspaceKind = "direct"
	// WorkspaceVolume is a [Volume], writable, without a host directory: nothing is reviewed or applied.
	WorkspaceVolume WorkspaceKind = "volume"
)

// A SyncMode defines how changes in a workspace are applied to the host directory. With SyncYolo, changes that fail a check, and
// removals of most of the directory's files, are applied only by a person.
type SyncMode string

// The modes.
const (
	SyncSecure SyncMode = "secure"      // a person applies changes after a review
	SyncYolo   SyncMode = "yolo"        // changes that pass every check are applied every 30 s and at the end
	SyncUnsafe SyncMode = "yolo-unsafe" // no review: the sandbox writes to the host directory itself
)

// WorkspaceState is the state of a workspace.
type WorkspaceState string

// The states of workspaces.
const (
	WorkspaceLive     WorkspaceState = "live"    // the sandbox exists
	WorkspaceDetached WorkspaceState = "resting" // the sandbox was removed, and some changes were not applied
	WorkspaceSettled  WorkspaceState = "settled" // the sandbox was removed and no change is left; deleted after a retention time
)

// A Workspace is a host directory as one sandbox sees it, with the changes that the sandbox has made. It outlives its sandbox.
type Workspace struct {
	ID      ID             `json:"id"`
	Account string         `json:"account"`
	Kind    WorkspaceKind  `json:"kind"`
	Mode    SyncMode       `json:"mode"`
	State   WorkspaceState `json:"state"`
	Source  string         `json:"source" doc:"The directory, as named by the caller"`
	Target  string         `json:"target" doc:"Where it is in the sandbox"`
	Sandbox ID             `json:"sandbox"`
	Run     ID             `json:"run,omitempty" doc:"The run that the sandbox was made for"`
	Agent   string         `json:"agent,omitempty"`

	HostPath string `json:"-"` // path by which the host directory is opened
	Device   uint64 `json:"-"` // device number of the host directory; must be the same whenever the directory is opened
	Inode    uint64 `json:"-"` // inode number of the host directory; must be the same whenever the directory is opened
	UID      uint32 `json:"uid" doc:"Owner of the directory; applied files belong to this user"`
	GID      uint32 `json:"gid"` // group of the directory; applied files belong to this group

	Files       int64    `json:"files" doc:"Entries in the directory when it was mounted"`
	Hidden      []string `json:"hidden,omitempty" doc:"Secret-looking files that the sandbox does not see; at most 1000"`
	HiddenCount int      `json:"hiddenCount,omitempty"` // number of hidden paths, in Hidden or not, without those below others
	// Suspects are found by their names when the workspace is created. Those found by their content follow soon, in the
	// result of GetWorkspace; Search is nil until then.
	Suspects     []Suspect        `json:"suspects,omitempty" doc:"Files that the sandbox sees and that may contain secrets; at most 200. Lists have only those known by their names"`
	SuspectCount int              `json:"suspectCount,omitempty"` // number of all that were found, in Suspects or not
	Search       *WorkspaceSearch `json:"search,omitempty" doc:"What was searched for secrets; absent while that is under way, and in lists"`
	Changes      int              `json:"changes" doc:"Number of waiting changes at the last diff"`
	Warning      string           `json:"warning,omitempty" doc:"Warnings for the user"`
	CreatedAt    time.Time        `json:"createdAt"`
	EndedAt      time.Time        `json:"endedAt,omitzero" doc:"When its sandbox was removed"`
	SyncedAt     time.Time        `json:"syncedAt,omitzero"` // when changes were last applied to the directory
}

// A Suspect is a file that may contain a secret.
type Suspect struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// A WorkspaceSearch reports how far the files of a workspace were searched for secrets.
type WorkspaceSearch struct {
	Searched   int64 `json:"searched" doc:"Files"`
	Unsearched int64 `json:"unsearched" doc:"Files that are larger than 256 KiB, beyond 5,000 files, 32 MiB or 10 s, changed or unreadable, or in .git or node_modules"`
}

// A WorkspaceRequest requests a workspace for a sandbox or run. Mode defines how changes get to the host directory: a person
// applies them (secure), those that pass every check are applied automatically (yolo), or the sandbox writes to the directory
// itself (yolo-unsafe, with the kind direct). Source is the client's path of the directory; the daemon uses Directory to open it.
type WorkspaceRequest struct {
	Kind   WorkspaceKind `json:"kind,omitempty" enum:"overlay,copy,direct,volume," doc:"Default overlay"`
	Mode   SyncMode      `json:"mode,omitempty" enum:"secure,yolo,yolo-unsafe," doc:"Default secure"`
	Source string        `json:"source" doc:"What people call the directory; of the kind volume, the volume's name, which is made if there is none"`
	Target string        `json:"target,omitempty" doc:"Where it is in the sandbox; default /workspace"`
	Show   []string      `json:"show,omitempty" doc:"Patterns of names that look like secrets and are not hidden"`
	// Directory is the directory, opened by the client with its own rights, and only over the unix socket. The callee
	// owns and closes it.
	Directory Handle `json:"-"`
}

// DefaultKind fills in the defaults of Kind and Mode. The defaults never allow changes without review, which the kind or the mode
// must request explicitly. It returns an Invalid error for kinds and modes that are unknown or do not fit together.
func (r *WorkspaceRequest) DefaultKind() error {
	if r.Kind == "" {
		r.Kind = WorkspaceOverlay
		if r.Mode == SyncUnsafe {
			r.Kind = WorkspaceDirect
		}
	}
	if r.Mode == "" {
		r.Mode = SyncSecure
		if r.Kind == WorkspaceDirect {
			r.Mode = SyncUnsafe
		}
	}
	switch r.Kind {
	case WorkspaceOverlay, WorkspaceCopy, WorkspaceDirect:
	default:
		return Invalidf("workspace.kind", "%.70q is not overlay, copy, direct or volume", r.Kind)
	}
	switch r.Mode {
	case SyncSecure, SyncYolo, SyncUnsafe:
	default:
		return Invalidf("workspace.mode", "%.70q is not secure, yolo or yolo-unsafe", r.Mode)
	}
	if (r.Kind == WorkspaceDirect) != (r.Mode == SyncUnsafe) {
		return Invalidf("workspace.mode", "%s is not valid for a workspace of kind %s: yolo-unsafe requires kind direct, and direct requires yolo-unsafe", r.Mode, r.Kind)
	}
	return nil
}

// The kinds of a change.
const (
	ChangeAdded    = "added"
	ChangeModified = "modified" // the content has changed, and possibly the mode
	ChangeRemoved  = "removed"
	ChangeRenamed  = "renamed" // the file was renamed from OldPath, and possibly modified
	ChangeMode     = "mode"    // only the permission bits have changed
	ChangeType     = "type"    // the type has changed: for example a file became a symlink
)

// The verdicts on a change.
const (
	VerdictPass     = "pass"  // the change may be applied
	VerdictAsk      = "ask"   // requires approval by a person; is never applied automatically
	VerdictDeny     = "deny"  // the change is never applied
	VerdictConflict = "clash" // conflict: the host's file has changed as well, and the changes cannot be merged
)

// A Change is one difference between a workspace and the host directory as it was when the workspace was created. Type, Mode,
// Size and Link describe the file in the workspace, and the fields with Old before their names the one in that directory.
type Change struct {
	Path    string `json:"path" doc:"Relative, with slashes. A name that is not UTF-8 is shown with escapes, and denied"`
	Kind    string `json:"kind" enum:"added,modified,removed,renamed,mode,type"`
	OldPath string `json:"oldPath,omitempty"`
	Type    string `json:"type" enum:"file,dir,symlink,fifo,socket,device,none" doc:"Of what is there now; none if removed"`
	OldType string `json:"oldType" enum:"file,dir,symlink,fifo,socket,device,none"`
	Mode    uint32 `json:"mode,omitempty" doc:"Permission bits, with setuid, setgid and sticky"`
	OldMode uint32 `json:"oldMode,omitempty"`
	Size    int64  `json:"size,omitempty"`    // in bytes
	OldSize int64  `json:"oldSize,omitempty"` // in bytes
	Link    string `json:"link,omitempty" doc:"Where a symlink leads"`
	Process string `json:"process,omitempty" doc:"Process that last wrote it, as recorded by the sandbox's kernel: pid and command"`
	// Hash identifies the reviewed type, mode and content of the file. A sync applies the change only if the hash is still the same.
	Hash    string    `json:"hash"`
	Binary  bool      `json:"binary,omitempty"` // the old or new content is not text or too large: no numbers of lines, no patch
	Added   int       `json:"added,omitempty" doc:"Lines"`
	Removed int       `json:"removed,omitempty"`                  // number of removed lines
	Verdict string    `json:"verdict" enum:"pass,ask,deny,clash"` // the strictest verdict of the findings; pass if there are none
	Finding []Finding `json:"findings,omitempty"`
	// HostChanged means that the host's file has changed since the workspace was created. Merge then reports whether the host's
	// change and the sandbox's can be merged without one overwriting the other.
	HostChanged bool   `json:"moved,omitempty"`
	Merge       bool   `json:"merge,omitempty" doc:"Whether the change can be merged into the host's current file; hash is that of the merged file"`
	Patch       string `json:"patch,omitempty" doc:"Unified diff, if it was requested and is text; of a merge or a conflict, against what the host has now"`
}

// A Finding is the result of a check of a change.
type Finding struct {
	Check   string `json:"check" enum:"path,name,type,size,link,mode,collision,secret,text,removal,command,host"`
	Verdict string `json:"verdict" enum:"pass,ask,deny,clash"`
	Message string `json:"message"`
	Line    int    `json:"line,omitempty"` // line of the file, from 1; 0 if the finding is not about one line
}

// A DiffRequest selects the changes of a diff. Zero fields select everything.
type DiffRequest struct {
	Only  []string `json:"only,omitempty" doc:"Glob patterns of paths; ** stands for any directories"`
	Patch bool     `json:"patch,omitempty" doc:"With patches"`
	// Freeze keeps a copy of the shown changes, so that they can be applied.
	Freeze bool `json:"freeze,omitempty"`
}

// A Diff contains the changes in a workspace, and whether they may be applied.
type Diff struct {
	Workspace *Workspace `json:"workspace"`
	Review    ID         `json:"review,omitempty" doc:"Id of the frozen copy, for a sync; kept for a day"`
	At        time.Time  `json:"at"` // when the changes were compared with the host directory
	Changes   []Change   `json:"changes"`
	Cut       bool       `json:"cut,omitempty" doc:"Whether there are more changes than are shown; changes that are not shown cannot be applied"`
	Checks    []string   `json:"checks,omitempty" doc:"What was checked"` // names of the checks, such as path and secret
}

// A Selection is a change that was selected to be applied.
type Selection struct {
	Path  string `json:"path"`
	Hash  string `json:"hash" doc:"As reviewed"` // Hash of the reviewed Change
	Hunks []int  `json:"hunks,omitempty" doc:"Of its patch, from 0; empty means the whole change"`
}

// A SyncRequest applies changes of a review to the host directory: all of them or none.
type SyncRequest struct {
	Review ID          `json:"review,omitempty" doc:"Empty with auto"`
	Apply  []Selection `json:"apply,omitempty"` // changes of the review to apply; empty with Auto
	Drop   []string    `json:"drop,omitempty" doc:"Paths whose changes are undone in the workspace; only when its sandbox is not running"`
	Auto   bool        `json:"auto,omitempty" doc:"Review, and apply all changes that pass every check"`
	Only   []string    `json:"only,omitempty" doc:"With auto: glob patterns of paths"`
	// Confirmed means that a person has read the reasons of the verdict ask.
	Confirmed bool `json:"asked,omitempty"`
	// Directory is the workspace's directory, opened by the client with its own rights: a client that cannot write
	// there cannot apply changes.
	Directory Handle `json:"-"`
}

// The states of receipts.
const (
	ReceiptApplied = "applied"
	ReceiptUndone  = "undone"
)

// A SyncReceipt records which changes were applied, by whom, after which checks.
type SyncReceipt struct {
	ID        ID             `json:"id"`
	Account   string         `json:"account"`
	Workspace ID             `json:"workspace"`
	Sandbox   ID             `json:"sandbox,omitempty"` // the sandbox that made the changes
	Run       ID             `json:"run,omitempty"`     // the run that the sandbox was made for; empty for none
	By        string         `json:"by"`                // who applied them: local, a token's id, or auto for the daemon itself
	Mode      SyncMode       `json:"mode"`
	State     string         `json:"state" enum:"applied,undone"`
	At        time.Time      `json:"at"`                // when the changes were applied
	UndoneAt  time.Time      `json:"undoneAt,omitzero"` // when they were undone; zero: never
	Checks    []string       `json:"checks"`            // names of the checks that were made, and of commands that have passed
	Entries   []ReceiptEntry `json:"entries"`
	// Auto means that all changes that passed every check were applied, without a selection by a person.
	Auto    bool   `json:"auto,omitempty" doc:"Whether all changes that passed every check were applied, without a selection"`
	Waiting int    `json:"waiting,omitempty" doc:"Number of changes that were not applied because a check failed or the host directory has changed"`
	Held    string `json:"held,omitempty" doc:"With auto: explains that removals of most of the directory's files were not applied, and how to apply them"`
}

// A ReceiptEntry is one path of the host directory that a sync created, modified or removed.
type ReceiptEntry struct {
	Path   string `json:"path"`
	Kind   string `json:"kind"` // kind of the change: ChangeAdded, ChangeModified, …
	Before string `json:"before,omitempty" doc:"Hash of what was there; empty: nothing"`
	After  string `json:"after,omitempty" doc:"Hash of what is there now; empty: nothing"`
	Merged bool   `json:"merged,omitempty"` // the change was merged into a file that had changed on the host
}

// A WorkspaceFilter selects workspaces and receipts. Zero fields select everything.
type WorkspaceFilter struct {
	States    []WorkspaceState
	Run       ID
	Sandbox   ID
	Workspace ID // selects receipts of this workspace
	// Before is the id of the last object of the previous page; pages are sorted from new to old. Limit is the size of a page, at
	// most 1000; 0 means 100.
	Before ID
	Limit  int
}

// Workspaces is the service of the gate between workspaces and host directories, for API clients. ref is the id of a
// workspace, or of the sandbox or run that has it. All methods are safe for concurrent use.
type Workspaces interface {
	GetWorkspace(ctx context.Context, ref string) (*Workspace, error)
	ListWorkspaces(ctx context.Context, f WorkspaceFilter) (page []*Workspace, more bool, err error)
	// Diff returns the changes of a workspace that req selects, with the findings of the gate.
	Diff(ctx context.Context, ref string, req DiffRequest) (*Diff, error)
	// Sync applies changes. Conflict if the content has changed since the review, or if the host directory has changed.
	Sync(ctx context.Context, ref string, req SyncRequest) (*SyncReceipt, error)
	// Reset discards all changes of a workspace whose sandbox is not running.
	Reset(ctx context.Context, ref string) (*Workspace, error)
	// RemoveWorkspace deletes a workspace whose sandbox was removed, with all its changes.
	RemoveWorkspace(ctx context.Context, ref string) error
	ListReceipts(ctx context.Context, f WorkspaceFilter) (page []*SyncReceipt, more bool, err error)
	GetReceipt(ctx context.Context, id ID) (*SyncReceipt, error)
	// Undo reverts the changes of a receipt: all or none. Conflict if the host directory has changed since the sync. dir is that
	// directory, opened by the client with its own rights.
	Undo(ctx context.Context, id ID, dir Handle) (*SyncReceipt, error)
}

// WorkspaceStore holds workspaces and receipts.
type WorkspaceStore interface {
	Insert(ctx context.Context, w *Workspace) error
	// Get finds a workspace by its id, or the newest of the sandbox or run with that id.
	Get(ctx context.Context, in Scope, ref string) (*Workspace, error)
	List(ctx context.Context, in Scope, f WorkspaceFilter) (page []*Workspace, more bool, err error)
	// Update calls change with the stored workspace, maybe more than once, and stores the result unless change returns an error.
	Update(ctx context.Context, in Scope, id ID, change func(*Workspace) error) (*Workspace, error)
	// Delete removes a workspace with its receipts.
	Delete(ctx context.Context, in Scope, id ID) error
	InsertReceipt(ctx context.Context, r *SyncReceipt) error
	GetReceipt(ctx context.Context, in Scope, id ID) (*SyncReceipt, error)
	ListReceipts(ctx context.Context, in Scope, f WorkspaceFilter) (page []*SyncReceipt, more bool, err error)
	UpdateReceipt(ctx context.Context, in Scope, id ID, change func(*SyncReceipt) error) (*SyncReceipt, error)
}

// WorkspaceLayers is the interface of workspaces for package sandboxes. All methods are safe for concurrent use.
type WorkspaceLayers interface {
	// Create creates the workspace of a new sandbox: its layers, the mask of hidden files, and the record of the
	// directory's state. It takes as long as a walk over the directory. The callee closes req.Directory.
	Create(ctx context.Context, sb *Sandbox, req WorkspaceRequest) (*Workspace, error)
	// Open returns the mount for a start of the sandbox. The caller closes its descriptors. Conflict if the directory
	// no longer exists.
	Open(ctx context.Context, id ID) (RuntimeMount, error)
	// OpenUpper opens the directory with the files that the sandbox has written to the workspace, to measure it.
	OpenUpper(id ID) (*os.File, error)
	// Capture writes the current content of the workspace's layer to the new directory dir. The sandbox must be frozen,
	// or not running, in the meantime.
	Capture(ctx context.Context, id ID, dir string) error
	// Detach records that the sandbox that has the workspace was removed: the workspace is then no longer live. Idempotent.
	Detach(ctx context.Context, id ID) error
}
