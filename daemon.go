package caisson

import (
	"context"
	"time"
)

// Info describes a daemon.
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

// DiskUsage is the disk usage of a data directory.
type DiskUsage struct {
	Usages []Usage `json:"usages"`
	Free   Size    `json:"free" doc:"Bytes free on the file system of the data directory"`
	Total  Size    `json:"total"`
}

// Garbage is an object on the host that belonged to no object of the store, and was removed.
type Garbage struct {
	Kind string `json:"kind" doc:"process, mount, namespace, tap, cgroup, directory"`
	Name string `json:"name"`
}

// A Check is the result of one check of the host.
type Check struct {
	Name   string `json:"name"`
	Status string `json:"status" enum:"ok,warning,failed"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty" doc:"What to do about it"`
}

// Daemon is the service for a daemon as a whole. All methods but Info concern the objects of every account and the
// host, and are for local callers only (Denied otherwise).
type Daemon interface {
	Info(ctx context.Context) (*Info, error)
	DiskUsage(ctx context.Context) (*DiskUsage, error)
	// CollectGarbage removes the objects that a crash left behind and returns them.
	CollectGarbage(ctx context.Context) ([]Garbage, error)
	// Examine checks that the host meets Caisson's requirements.
	Examine(ctx context.Context) ([]Check, error)
}
