package sandboxes

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson"
)

// writersFile is in the directory of a sandbox with a workspace and says who was the last to change what there when its processes
// were ended: they are asked before, as their kernel takes it along.
const writersFile = "writers.json"

// writersTime bounds how long the end of a sandbox waits for that. One that does not answer is ended without.
const writersTime = 2 * time.Second

// Writers returns who was the last to change what in a sandbox's workspace, since that was made. What is not known is not in it:
// in a sandbox whose main process has died, what has happened since it was last asked. Nil if the runtime does not know such
// things; NotFound if there is no such sandbox. It is for the engine: whose the sandbox is is not asked.
func (l *Lifecycle) Writers(ctx context.Context, id caisson.ID) (*caisson.Writers, error) {
	sb, err := l.c.Store.Sandboxes().Get(ctx, caisson.Everyone(), string(id))
	if err != nil {
		return nil, err
	}
	return l.c.spaces.writers(ctx, sb)
}

func (w workspaces) writers(ctx context.Context, sb *caisson.Sandbox) (*caisson.Writers, error) {
	rec, ok := w.c.Runtime.(caisson.Recorder)
	if !ok || sb.Spec.Workspace == "" {
		return nil, nil
	}
	// First those who may be ended meanwhile, then what they left.
	now, err := rec.Writers(ctx, sb.ID, sb.Spec.WorkspaceAt)
	if k := caisson.KindOf(err); err != nil && k != caisson.NotFound && k != caisson.Conflict {
		return nil, err
	}
	before, err := readWriters(w.c.sandboxDir(sb.ID))
	if err != nil {
		return nil, err
	}
	return now.After(before), nil
}

// keepWriters keeps who has written what in a sandbox that is about to be ended. That it cannot is no reason not to end it.
func (w workspaces) keepWriters(ctx context.Context, id caisson.ID) {
	if _, ok := w.c.Runtime.(caisson.Recorder); !ok {
		return
	}
	sb, err := w.c.Store.Sandboxes().Get(ctx, caisson.Everyone(), string(id))
	if err != nil || sb.Spec.Workspace == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writersTime)
	defer cancel()
	all, err := w.writers(ctx, sb)
	if err == nil && all != nil && len(all.List) > 0 {
		err = writeWriters(w.c.sandboxDir(id), all)
	}
	if err != nil {
		w.c.Log.WarnContext(ctx, "it is not known which process was the last to change what in a workspace", "sandbox", id, "err", err)
	}
}

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

func writeWriters(dir string, w *caisson.Writers) error {
	return writeFile(filepath.Join(dir, writersFile), func(f *os.File) error { return json.NewEncoder(f).Encode(w) })
}
