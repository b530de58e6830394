package sandboxes

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-dev/caisson"
)

// goneReason is the reason of a failed sandbox, or of the removal of an object, whose files do not exist: for example because a
// backup was restored, which contains no snapshots and no layers.
const goneReason = "its files are gone from disk"

// missingObjects finds objects in the store whose files do not exist, and removes them from the store.
type missingObjects struct {
	snapshots caisson.Table[caisson.Snapshot]
	images    caisson.Table[caisson.Image]
	templates caisson.Table[caisson.Template]
	dirs      dirs // paths and files in the data directory
	events    caisson.Publisher
	log       *slog.Logger
}

// forget removes snapshots and images without files, and the build results of templates without layers, from the store.
func (m *missingObjects) forget(ctx context.Context) error {
	snaps, err := caisson.ListAll(ctx, m.snapshots, caisson.AllAccounts(), snapshotID)
	if err != nil {
		return err
	}
	for _, s := range snaps {
		if !isMissing(m.dirs.snapshotDir(s.ID)) {
			continue
		}
		if err := m.snapshots.Delete(ctx, caisson.AllAccounts(), string(s.ID)); err != nil {
			return err
		}
		m.reportRemoved(ctx, s.Account, "snapshot", string(s.ID))
	}
	imgs, err := caisson.ListAll(ctx, m.images, caisson.AllAccounts(), imageKey)
	if err != nil {
		return err
	}
	for _, i := range imgs {
		if !m.lacksLayer(i.Rootfs) {
			continue
		}
		if err := m.images.Delete(ctx, caisson.In(i.Account), i.Reference); err != nil {
			return err
		}
		m.reportRemoved(ctx, i.Account, "image", i.Reference)
	}
	tpls, err := caisson.ListAll(ctx, m.templates, caisson.AllAccounts(), templateKey)
	if err != nil {
		return err
	}
	for _, t := range tpls {
		if t.Built == nil || !m.lacksLayer(t.Built.Rootfs) {
			continue
		}
		if _, err := m.templates.Update(ctx, caisson.In(t.Account), t.Name, func(t *caisson.Template) error {
			t.Built = nil
			return nil
		}); err != nil {
			return err
		}
		m.log.WarnContext(ctx, "the layers of a template are missing on disk; it will be built again", "template", t.Name, "account", t.Account)
	}
	return nil
}

// lacksLayer reports whether a layer of f does not exist or is not in the data directory. A layer in another data directory
// counts as missing, because that directory may be removed at any time.
func (m *missingObjects) lacksLayer(f caisson.Rootfs) bool {
	return slices.ContainsFunc(f.Layers, func(l string) bool {
		rel, err := filepath.Rel(m.dirs.root, l)
		return err != nil || !filepath.IsLocal(rel) || isMissing(l)
	})
}

// reportRemoved logs, and publishes as an event, that an object was removed because it has no files.
func (m *missingObjects) reportRemoved(ctx context.Context, account, kind, name string) {
	m.log.WarnContext(ctx, "an object without files was removed", "kind", kind, "name", name, "account", account)
	m.events.Publish(ctx, account, kind+".removed", name, map[string]string{"reason": goneReason})
}

// isMissing reports whether no file or directory exists at path.
func isMissing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
