package caisson

import (
	"context"
	"os"
	"regexp"
	"time"
)

// VolumePrefix begins the IDs of volumes.
const VolumePrefix = "vl"

// A Volume is a directory that outlives sandboxes. It belongs to its account's guests: any user of a sandbox can own files in it.
// One sandbox at a time has it.
type Volume struct {
	ID        ID                `json:"id"`
	Account   string            `json:"account"`
	Name      string            `json:"name" pattern:"^[a-z0-9][a-z0-9._-]{0,63}$" doc:"Unique within the account; may be used instead of the id"`
	Labels    map[string]string `json:"labels,omitempty"`
	Sandbox   ID                `json:"sandbox,omitempty" doc:"Which has it now, running or not; absent if it is free"`
	Bytes     Size              `json:"bytes" doc:"What its files took on the disk when it was last counted"`
	Files     int64             `json:"files" doc:"Its files and directories when they were last counted"`
	CreatedAt time.Time         `json:"createdAt"`
	CountedAt time.Time         `json:"countedAt,omitzero"`
	UsedAt    time.Time         `json:"usedAt,omitzero" doc:"When a sandbox last took or left it"`
}

// A VolumeRequest asks for a volume.
type VolumeRequest struct {
	Name   string            `json:"name" pattern:"^[a-z0-9][a-z0-9._-]{0,63}$"`
	Labels map[string]string `json:"labels,omitempty"`
}

var volumeName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// CheckVolumeName returns an Invalid error of that field if name cannot be a volume's. What has the form of a volume's id cannot.
func CheckVolumeName(field, name string) error {
	if !volumeName.MatchString(name) {
		return Invalidf(field, "%.70q is not the name of a volume: use up to 64 lower-case letters, digits, dots, dashes and underscores, beginning with a letter or digit", name)
	}
	if _, err := ParseID(VolumePrefix, name); err == nil {
		return Invalidf(field, "%q looks like an id; choose another name", name)
	}
	return nil
}

// Volumes is the service of volumes. All methods are safe for concurrent use; the caller is in ctx, see [WithCaller]. ref is an id
// or a name.
type Volumes interface {
	// CreateVolume makes an empty volume. Conflict if there is one of that name.
	CreateVolume(ctx context.Context, req VolumeRequest) (*Volume, error)
	// GetVolume counts anew what is in the volume, unless it has been counted within a minute or that takes longer than a second.
	GetVolume(ctx context.Context, ref string) (*Volume, error)
	ListVolumes(ctx context.Context, f Filter) (page []*Volume, more bool, err error)
	// RemoveVolume removes a volume with all that is in it. Conflict while a sandbox has it.
	RemoveVolume(ctx context.Context, ref string) error
}

// VolumeHolds is how the lifecycle of sandboxes uses volumes. All methods are safe for concurrent use.
type VolumeHolds interface {
	// Hold gives a volume of the account to a sandbox that is being made, and makes the volume first if there is none of that
	// name. Conflict if another sandbox has it. Idempotent for one sandbox.
	Hold(ctx context.Context, account, ref string, sandbox ID) (*Volume, error)
	// Open returns the mount for a start of the sandbox, without its target. The caller closes its descriptor. A Conflict says
	// that the volume is not the sandbox's (any more).
	Open(ctx context.Context, id, sandbox ID) (RuntimeMount, error)
	// Written opens the directory that has what sandboxes have written to the volume, to count it.
	Written(id ID) (*os.File, error)
	// Leave says that the sandbox is gone, or was not made. Idempotent; nothing for a sandbox that does not have the volume.
	Leave(ctx context.Context, id, sandbox ID) error
}
