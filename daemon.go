package caisson

import (
	"context"
	"io"
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
	Upload    Size         `json:"upload" doc:"Bytes that the directory of a run may have as an archive; 0: not known"`
}

// Usage is the disk space that the objects of one kind use.
type Usage struct {
	Kind        string `json:"kind" doc:"layers, sandboxes, snapshots, volumes, programs, tools, runs, ledger, store"`
	Count       int    `json:"count"` // number of objects
	Size        Size   `json:"size" doc:"Bytes on disk"`
	Reclaimable Size   `json:"reclaimable" doc:"Bytes that a prune would free"`
}

// DiskUsage is the disk usage of a data directory.
type DiskUsage struct {
	Usages []Usage `json:"usages"`
	Free   Size    `json:"free" doc:"Bytes free on the file system of the data directory"`
	Total  Size    `json:"total"` // size of the file system of the data directory, in bytes
}

// Garbage describes an object on the host, such as a directory, that was removed because no object of the store used it.
type Garbage struct {
	Kind string `json:"kind" doc:"process, mount, namespace, tap, cgroup, directory"`
	Name string `json:"name"`
}

// The values of Status of a [Check] and of an [AgentCheck].
const (
	CheckOK      = "ok"
	CheckWarning = "warning" // what was checked works, with the limitation that Detail describes
	CheckFailed  = "failed"  // what was checked does not work, or does not work safely
)

// A Check is the result of one check of the host.
type Check struct {
	Name   string `json:"name"`
	Status string `json:"status" enum:"ok,warning,failed"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty" doc:"What to do about it"`
}

// DaemonStatus describes the process of a daemon, its listeners and the objects that it manages.
type DaemonStatus struct {
	Info
	PID        int      `json:"pid"`
	Background bool     `json:"background" doc:"It was started by a command and ends when it is idle"`
	DataDir    string   `json:"dataDir"`
	Listen     []string `json:"listen" doc:"Addresses on which it listens: its unix socket, host:port of the API, and those of gateway, ingress and ssh after these words"`
	Sandboxes  int      `json:"sandboxes" doc:"Sandboxes of all accounts"`
	Running    int      `json:"running" doc:"Sandboxes of all accounts that run"`
	Suspended  int      `json:"suspended" doc:"Sandboxes of all accounts that are suspended"`
	Runs       int      `json:"runs" doc:"Runs of all accounts that have not ended"`
	// Begun is the number of runs that have begun and would fail if the daemon ended now. Interactive runs are not counted.
	Begun    int      `json:"begun" doc:"Of these, the runs that would fail if the daemon ended now: they have begun and are not interactive"`
	Execs    int      `json:"execs" doc:"Programs in sandboxes that clients have started with exec and wait for; they are killed if the daemon ends"`
	Accounts []string `json:"accounts,omitempty" doc:"Names of all accounts"`
	Settings Settings `json:"settings"`
}

// Settings describes the configuration of a daemon.
type Settings struct {
	File    string         `json:"file,omitempty" doc:"The configuration file; empty if there is none"`
	InForce map[string]any `json:"inForce" doc:"The settings that the daemon uses, by key"`
	// Changed and Invalid describe the current content of the configuration file, which may differ from the settings in force.
	Changed []string `json:"changed,omitempty" doc:"Keys of settings that the file has other values for"`
	Invalid string   `json:"invalid,omitempty" doc:"Why the file cannot be used"`
}

// Reloaded is the result of [Daemon.Reload], which reads the configuration again.
type Reloaded struct {
	Applied     []string `json:"applied" doc:"Keys of the settings that have changed and are in force"`
	NeedRestart []string `json:"needRestart" doc:"Keys of the settings that have changed and take effect when the daemon is restarted"`
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
	Status(ctx context.Context) (*DaemonStatus, error)
	// Reload reads the configuration again, as SIGHUP does. If it is invalid, the error says why and nothing changes;
	// Unavailable if the process has no configuration.
	Reload(ctx context.Context) (*Reloaded, error)
	// Backup returns an archive of the state of the data directory, as it is now. The archive contains secrets. The caller must
	// close it. If a read returns an error other than io.EOF, the archive is incomplete and cannot be restored.
	Backup(ctx context.Context) (io.ReadCloser, error)
}
