package caisson

import (
	"context"
	"time"
)

// Info says what a daemon is.
type Info struct {
	Version   string       `json:"version"`
	Build     string       `json:"build" doc:"Build of Caisson, and so of gVisor"`
	Instance  ID           `json:"instance" doc:"Identifies the data directory"`
	Node      string       `json:"node" doc:"The machine it runs on"`
	StartedAt time.Time    `json:"startedAt"`
	Runtime   Capabilities `json:"runtime"`
}

// Usage is the disk space of one kind of object.
type Usage struct {
	Kind        string `json:"kind" doc:"layers, sandboxes, snapshots, volumes, logs, store"`
	Count       int    `json:"count"`
	Size        Size   `json:"size" doc:"Bytes on disk"`
	Reclaimable Size   `json:"reclaimable" doc:"Bytes that a prune would free"`
}

// DiskUsage is what a data directory holds.
type DiskUsage struct {
	Usages []Usage `json:"usages"`
	Free   Size    `json:"free" doc:"Bytes free on the file system of the data directory"`
	Total  Size    `json:"total"`
}

// Garbage is an object of the host that no object of the store accounted for, and that was removed.
type Garbage struct {
	Kind string `json:"kind" doc:"process, mount, namespace, tap, cgroup, directory"`
	Name string `json:"name"`
}

// A Check is one line of an examination of the host.
type Check struct {
	Name   string `json:"name"`
	Status string `json:"status" enum:"ok,warning,failed"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty" doc:"What to do about it"`
}

// Daemon is what can be asked of a daemon as a whole. All but Info speak about every account's objects and the host, and
// are for local callers only (Denied otherwise).
type Daemon interface {
	Info(ctx context.Context) (*Info, error)
	DiskUsage(ctx context.Context) (*DiskUsage, error)
	// CollectGarbage removes what a crash left behind and returns it.
	CollectGarbage(ctx context.Context) ([]Garbage, error)
	// Examine checks that the host has what Caisson needs.
	Examine(ctx context.Context) ([]Check, error)
}
