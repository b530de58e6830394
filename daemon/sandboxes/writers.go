package sandboxes

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson"
)

// writersFile is the file in the directory of a sandbox with a workspace that records which process was the last to change each
// file, up to the last time that the sandbox's processes were killed. It is written before the processes are killed, because the
// sandbox's kernel, which keeps the records, ends with them.
const writersFile = "writers.json"

// writersTimeout is the timeout for saving which process changed which file. After it, the sandbox's processes are killed even if
// this was not saved.
const writersTimeout = 2 * time.Second

// writers returns and stores records of which process was the last to change each file in a workspace.
type writers struct {
	states  states                 // stored records of sandboxes
	runtime caisson.WriterRecorder // records writers of files; nil: the runtime keeps no records
	dirs    dirs                   // paths and files in the data directory
	log     *slog.Logger
}

// byID returns which process was the last to change each file in a sandbox's workspace; nil if that is not recorded.
func (w *writers) byID(ctx context.Context, id caisson.ID) (*caisson.Writers, error) {
	sb, err := w.states.get(ctx, id)
	if err != nil {
		return nil, err
	}
	return w.query(ctx, sb)
}

// query returns which process was the last to change each file in the workspace of sb; nil if that is not recorded.
func (w *writers) query(ctx context.Context, sb *caisson.Sandbox) (*caisson.Writers, error) {
	if w.runtime == nil || sb.Spec.Workspace == "" {
		return nil, nil
	}
	// The sandbox is queried before the stored file is read: if the sandbox is stopped in between, the file has its records.
	now, err := w.runtime.Writers(ctx, sb.ID, sb.Spec.WorkspaceAt)
	if k := caisson.KindOf(err); err != nil && k != caisson.NotFound && k != caisson.Conflict {
		return nil, err
	}
	before, err := readWriters(w.dirs.sandboxDir(sb.ID))
	if err != nil {
		return nil, err
	}
	return now.After(before), nil
}

// save stores which process changed which file of a sandbox whose processes are about to be killed. Errors are only logged.
func (w *writers) save(ctx context.Context, id caisson.ID) {
	if w.runtime == nil {
		return
	}
	sb, err := w.states.get(ctx, id)
	if err != nil || sb.Spec.Workspace == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writersTimeout)
	defer cancel()
	all, err := w.query(ctx, sb)
	if err == nil && all != nil && len(all.List) > 0 {
		err = writeWriters(w.dirs.sandboxDir(id), all)
	}
	if err != nil {
		w.log.WarnContext(ctx, "it is not known which process was the last to change what in a workspace", "sandbox", id, "err", err)
	}
}

// readWriters returns which process was the last to change each file of a workspace, as it is stored in dir, the directory of
// the sandbox; nil if nothing is stored.
func readWriters(dir string) (*caisson.Writers, error) {
	data, err := os.ReadFile(filepath.Join(dir, writersFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var w caisson.Writers
	if err == nil {
		err = json.Unmarshal(data, &w)
	}
	if err != nil {
		return nil, err
	}
	return &w, nil
}

// writeWriters stores in dir, the directory of a sandbox, which process was the last to change each file of its workspace.
func writeWriters(dir string, w *caisson.Writers) error {
	return writeFile(filepath.Join(dir, writersFile), func(f *os.File) error { return json.NewEncoder(f).Encode(w) })
}
