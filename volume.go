package caisson

import (
	"context"
	"os"
	"regexp"
	"time"
)

// VolumePrefix is the prefix of the IDs of volumes.
const VolumePrefix = "vl"

// A Volume is a directory that outlives sandboxes. It belongs to its account's guests: any user of a sandbox can own
// files in it. It is attached to at most one sandbox at a time.
type Volume struct {
	ID        ID                `json:"id"`
	Account   string            `json:"account"`
	Name      string            `json:"name" pattern:"^[a-z0-9][a-z0-9._-]{0,63}$" doc:"Unique within the account; may be used instead of the id"`
	Labels    map[string]string `json:"labels,omitempty"`
	Sandbox   ID                `json:"sandbox,omitempty" doc:"Sandbox that it is attached to, running or not; absent if it is detached"`
	Bytes     Size              `json:"bytes" doc:"Disk space of its files when they were last counted"`
	Files     int64             `json:"files" doc:"Its files and directories when they were last counted"`
	CreatedAt time.Time         `json:"createdAt"`
	CountedAt time.Time         `json:"countedAt,omitzero"` // when Bytes and Files were last determined; zero: never
	UsedAt    time.Time         `json:"usedAt,omitzero" doc:"When it was last attached or detached"`
}

// A VolumeRequest is the input of [Volumes.CreateVolume].
type VolumeRequest struct {
	Name   string            `json:"name" pattern:"^[a-z0-9][a-z0-9._-]{0,63}$"`
	Labels map[string]string `json:"labels,omitempty"`
}

// volumeName is the form of the names of volumes.
var volumeName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// CheckVolumeName returns an Invalid error about field if name is not a valid name of a volume. Names in the format of
// a volume's id are invalid.
func CheckVolumeName(field, name string) error {
	if !volumeName.MatchString(name) {
		return Invalidf(field, "%.70q is not the name of a volume: use up to 64 lower-case letters, digits, dots, dashes and underscores, beginning with a letter or digit", name)
	}
	if _, err := ParseID(VolumePrefix, name); err == nil {
		return Invalidf(field, "%q looks like an id; choose another name", name)
	}
	return nil
}

// Volumes is the service that manages volumes. All methods are safe for concurrent use, and act for the account of
// the [Caller] in ctx. ref is the id or name of a volume.
type Volumes interface {
	// CreateVolume creates an empty volume. Conflict if the name is taken.
	CreateVolume(ctx context.Context, req VolumeRequest) (*Volume, error)
	// GetVolume returns a volume. It measures the contents again, unless they were measured within the last minute. If measuring
	// takes longer than a second, it returns the previous result.
	GetVolume(ctx context.Context, ref string) (*Volume, error)
	ListVolumes(ctx context.Context, f Filter) (page []*Volume, more bool, err error)
	// RemoveVolume removes a volume with its contents. Conflict while it is attached to a sandbox.
	RemoveVolume(ctx context.Context, ref string) error
}

// VolumeAttachments attaches volumes to sandboxes, for package sandboxes. All methods are safe for concurrent use.
type VolumeAttachments interface {
	// Attach attaches a volume of the account to a sandbox that is being created. If the account has no volume with the name ref,
	// Attach creates it. Conflict if the volume is attached to another sandbox. Idempotent for one sandbox.
	Attach(ctx context.Context, account, ref string, sandbox ID) (*Volume, error)
	// Open returns the mount for a start of the sandbox, without its target. The caller closes its descriptor. Conflict
	// if the volume is not, or no longer, attached to the sandbox.
	Open(ctx context.Context, id, sandbox ID) (RuntimeMount, error)
	// OpenData opens the directory with the volume's contents, to measure it.
	OpenData(id ID) (*os.File, error)
	// Detach detaches a volume from a sandbox that was removed, or could not be created. Idempotent; it does nothing if
	// the volume is not attached to the sandbox.
	Detach(ctx context.Context, id, sandbox ID) error
}
