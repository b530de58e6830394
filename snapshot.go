package caisson

import (
	"context"
	"time"
)

// A Snapshot is the memory (optional), the root file system and every writable mount of a sandbox, captured at one instant.
type Snapshot struct {
	ID       ID                `json:"id"`
	Account  string            `json:"account"`
	Name     string            `json:"name,omitempty"`
	Sandbox  ID                `json:"sandbox" doc:"The captured sandbox"`
	Template string            `json:"template"`
	Memory   bool              `json:"memory" doc:"Whether memory was captured; if not, files only"`
	Size     Size              `json:"size" doc:"Bytes on disk"`
	Spec     Spec              `json:"spec"`
	Depends  Dependencies      `json:"depends"`
	Labels   map[string]string `json:"labels,omitempty"`
	Pool     int               `json:"pool,omitempty" doc:"How many forks of it are kept running in advance"`
	// Rootfs is only in the store, never in responses of the API.
	Rootfs    Rootfs    `json:"rootfs,omitzero"`
	CreatedAt time.Time `json:"createdAt"`
}

// Dependencies are the conditions for restoring the memory of a snapshot. If the host does not meet one of them, only the files
// of the snapshot are restored, and an event reports this.
type Dependencies struct {
	Build    string `json:"build" doc:"Programs that it is restored with, by content"`
	CPU      string `json:"cpu" doc:"Hash of the processor's features"`
	Rootfs   string `json:"rootfs" doc:"Digest of all lower files"`
	Platform string `json:"platform" doc:"gVisor platform"`
}

// A SnapshotRequest is the input of [Snapshots.Snapshot].
type SnapshotRequest struct {
	Name      string            `json:"name,omitempty"`
	FilesOnly bool              `json:"filesOnly,omitempty" doc:"Do not capture memory"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// A ForkRequest requests new sandboxes that continue from the state of a sandbox or snapshot.
type ForkRequest struct {
	Count  int               `json:"count,omitempty" doc:"How many; 0 means 1, at most 100"`
	Name   string            `json:"name,omitempty" doc:"Name of the fork; with a count, -1, -2, … are appended"`
	Labels map[string]string `json:"labels,omitempty"`
	// Policy replaces the policy of the forked sandbox or snapshot; nil keeps it. Models is not inherited, so that forking does
	// not multiply a budget.
	Policy *Policy     `json:"policy,omitempty" doc:"Instead of the origin's"`
	Models *ModelGrant `json:"models,omitempty" doc:"Its use of the model gateway; none if absent"`
	// Workspace requests a workspace for the fork. It is valid only if Count is 1 and what is forked has a workspace or
	// a placeholder, in place of which the requested workspace is mounted.
	Workspace *WorkspaceRequest `json:"workspace,omitempty"`
	// KeepRandomness leaves restored processes their PIDs. By default, getpid() returns other values in them, so that OpenSSL's
	// random generators seed themselves again, and forks do not draw the same random numbers.
	KeepRandomness bool       `json:"keepRandomness,omitempty" doc:"With memory: keep the process ids of its programs. By default their getpid() returns new values, so that OpenSSL's random generators seed themselves again; without that, forks draw the same keys"`
	AutoPause      *AutoPause `json:"autoPause,omitempty" doc:"Instead of the origin's"`
	FinalSnapshot  *bool      `json:"finalSnapshot,omitempty" doc:"Instead of the origin's"`
	// Assigned is the run that the fork is created for.
	Assigned *Assignment `json:"-"`
	// Resources replace those of the forked sandbox or snapshot in each field that is not zero. Memory cannot be reduced.
	Resources Resources `json:"-"`
}

// Snapshots is the service for snapshots and forks. ref is the ID or name of one. Conflict for a sandbox in a wrong state.
type Snapshots interface {
	// Snapshot captures a running, paused or stopped sandbox, which then continues as it was.
	Snapshot(ctx context.Context, ref string, req SnapshotRequest) (*Snapshot, error)
	// Fork creates running sandboxes from ref: a running, paused or stopped sandbox, or a snapshot's ID or name. Each
	// has its own ID, host name, machine-id and wire, and shares nothing writable with ref or the others.
	Fork(ctx context.Context, ref string, req ForkRequest) ([]*Sandbox, error)
	GetSnapshot(ctx context.Context, ref string) (*Snapshot, error)
	ListSnapshots(ctx context.Context, f Filter) (page []*Snapshot, more bool, err error)
	RemoveSnapshot(ctx context.Context, ref string) error
}
