package volumes

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// Attachments implements [caisson.VolumeAttachments].
type Attachments struct{ c *Core }

var _ caisson.VolumeAttachments = (*Attachments)(nil)

// errUnchanged aborts an update that has nothing to change.
var errUnchanged = errors.New("unchanged")

// maxAttempts bounds how often Attach retries because other callers create and remove the volume at the same time.
const maxAttempts = 10

// Attach implements [caisson.VolumeAttachments].
func (h *Attachments) Attach(ctx context.Context, account, ref string, sandbox caisson.ID) (*caisson.Volume, error) {
	_, err := caisson.ParseID(caisson.VolumePrefix, ref)
	named := err != nil
	for range maxAttempts {
		v, err := h.c.Store.Volumes().Get(ctx, caisson.In(account), ref)
		if named && caisson.KindOf(err) == caisson.NotFound {
			if err := caisson.CheckVolumeName("volume", ref); err != nil {
				return nil, err
			}
			v, err = h.c.create(ctx, account, caisson.VolumeRequest{Name: ref})
			if caisson.KindOf(err) == caisson.Conflict {
				continue // another caller has created the volume
			}
		}
		if err != nil {
			return nil, err
		}
		if v, err = h.attach(ctx, v.ID, sandbox); !named || caisson.KindOf(err) != caisson.NotFound {
			return v, err
		}
		// The volume has been removed since it was read, so the loop starts again.
	}
	return nil, caisson.Errorf(caisson.Conflict, "volume %s is being made and removed all the time; try again", ref)
}

// attach attaches a volume to a sandbox. Returns Conflict if another sandbox has it attached.
func (h *Attachments) attach(ctx context.Context, id, sandbox caisson.ID) (*caisson.Volume, error) {
	release, err := h.c.locks.Acquire(ctx, string(id))
	if err != nil {
		return nil, err
	}
	defer release()
	if data, err := h.open(ctx, id); err != nil {
		return nil, err // without the directory, a sandbox with this volume could not start
	} else if err := data.Close(); err != nil {
		return nil, err
	}
	if err := h.c.detachIfSandboxGone(ctx, id); err != nil {
		return nil, err
	}
	var has *caisson.Volume
	v, err := h.c.Store.Volumes().Update(ctx, caisson.AllAccounts(), string(id), func(v *caisson.Volume) error {
		switch v.Sandbox {
		case sandbox:
			has = v
			return errUnchanged
		case "":
			v.Sandbox, v.UsedAt = sandbox, now()
			return nil
		}
		return caisson.Errorf(caisson.Conflict, "sandbox %s has volume %s, and only one at a time can; remove that sandbox first (caisson sandbox rm %s), or use another volume", v.Sandbox, v.Name, v.Sandbox)
	})
	if errors.Is(err, errUnchanged) {
		return has, nil
	}
	if err != nil {
		return nil, err
	}
	h.c.event(ctx, v, "volume.taken", sandbox)
	return v, nil
}

// Open implements [caisson.VolumeAttachments].
func (h *Attachments) Open(ctx context.Context, id, sandbox caisson.ID) (m caisson.RuntimeMount, err error) {
	v, err := h.c.Store.Volumes().Get(ctx, caisson.AllAccounts(), string(id))
	switch {
	case caisson.KindOf(err) == caisson.NotFound && err != nil:
		return m, caisson.Wrap(err, caisson.Conflict, "the sandbox's volume %s does not exist any more; make a new sandbox", id)
	case err != nil:
		return m, err
	case v.Sandbox != sandbox:
		return m, caisson.Errorf(caisson.Conflict, "volume %s is not attached to sandbox %s; create a new sandbox with it when it is detached", v.Name, sandbox)
	}
	f, err := h.open(ctx, id)
	return caisson.RuntimeMount{Source: f, Writable: true}, err
}

// open opens the data directory of a volume, which guests see. Returns Conflict if the volume exists, but not the directory.
func (h *Attachments) open(ctx context.Context, id caisson.ID) (*os.File, error) {
	f, err := h.c.openData(id, unix.O_PATH)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	v, gerr := h.c.Store.Volumes().Get(ctx, caisson.AllAccounts(), string(id))
	if gerr != nil {
		return nil, gerr // the volume has been removed in the meantime
	}
	return nil, caisson.Wrap(err, caisson.Conflict, "the files of volume %s are gone from disk; put %s back, or remove the volume and make a new one", v.Name, h.c.dir(id))
}

// OpenData implements [caisson.VolumeAttachments].
func (h *Attachments) OpenData(id caisson.ID) (*os.File, error) {
	return h.c.openData(id, unix.O_RDONLY)
}

// Detach implements [caisson.VolumeAttachments].
func (h *Attachments) Detach(ctx context.Context, id, sandbox caisson.ID) error {
	v, err := h.c.Store.Volumes().Update(ctx, caisson.AllAccounts(), string(id), func(v *caisson.Volume) error {
		if v.Sandbox != sandbox || sandbox == "" {
			return errUnchanged
		}
		v.Sandbox, v.UsedAt = "", now()
		return nil
	})
	switch {
	case err == nil:
		h.c.event(ctx, v, "volume.left", sandbox)
		return nil
	case errors.Is(err, errUnchanged), caisson.KindOf(err) == caisson.NotFound:
		return nil
	}
	return err
}
