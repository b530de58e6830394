package sandboxes

import (
	"context"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/guestd"
	"github.com/caisson-dev/caisson/internal/background"
)

// Files implements [caisson.Files].
type Files struct{ access *fileAccess }

var _ caisson.Files = (*Files)(nil)

// fileClients holds the open file clients of sandboxes. A file client accesses the files of a sandbox through guestd, which it
// starts in the sandbox.
type fileClients struct {
	runtime    execer            // starts processes in sandboxes
	background *background.Group // background goroutines of the core

	mu sync.Mutex
	// open contains the open clients by sandbox. The client of a stand-in is stored under the id of the sandbox that does not
	// run. Guarded by mu.
	open map[caisson.ID]*fileClient
}

// close closes all clients.
func (gs *fileClients) close() {
	gs.mu.Lock()
	open := slices.Collect(maps.Values(gs.open))
	clear(gs.open)
	gs.mu.Unlock()
	for _, g := range open {
		g.close()
	}
}

// fileClient is the file client of a sandbox. For a sandbox that does not run, the client uses a stand-in: a temporary
// sandbox with the same files, but without command and wire, for reading only.
type fileClient struct {
	client  *guestd.Client // client of guestd, which accesses the files
	standIn *standIn       // stand-in that the client uses; nil for a running sandbox
	expire  *time.Timer    // closes the client of a stand-in after standInTTL without use; guarded by fileClients.mu
	users   int            // number of calls that use the client; guarded by fileClients.mu
}

// close closes the client and removes its stand-in, if it has one.
func (g *fileClient) close() {
	g.client.Close()
	if g.standIn != nil {
		g.standIn.remove()
	}
}

// standInTTL is how long a stand-in is kept after its last use.
const standInTTL = 5 * time.Second

// acquireRunning returns the file client of a running sandbox, and a function that releases the client after use.
func (gs *fileClients) acquireRunning(id caisson.ID) (*guestd.Client, func()) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := gs.open[id]
	if g == nil || g.standIn != nil {
		// The client of a stand-in in gs.open dates from when the sandbox did not run. It is not used, and stays in gs.open until
		// it is dropped or expires.
		g = &fileClient{client: gs.client(id)}
		if gs.open[id] == nil {
			gs.open[id] = g
		}
	}
	gs.hold(g)
	return g.client, func() { gs.release(id, g) }
}

// acquireStandIn returns the file client of the stand-in for a sandbox, and a function that releases the client after use. Both
// are nil if there is no stand-in.
func (gs *fileClients) acquireStandIn(of caisson.ID) (*guestd.Client, func()) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := gs.open[of]
	if g == nil || g.standIn == nil {
		return nil, nil
	}
	gs.hold(g)
	return g.client, func() { gs.release(of, g) }
}

// addStandIn stores in as the stand-in for a sandbox. It returns the file client of the stand-in, and a function that releases
// the client after use.
func (gs *fileClients) addStandIn(of caisson.ID, in *standIn) (*guestd.Client, func()) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g := &fileClient{client: gs.client(in.id), standIn: in}
	gs.hold(g)
	gs.open[of] = g
	return g.client, func() { gs.release(of, g) }
}

// hold increments the number of users of a client, and stops the timer that closes it. The caller must hold gs.mu.
func (gs *fileClients) hold(g *fileClient) {
	g.users++
	if g.expire != nil {
		g.expire.Stop()
	}
}

// release decrements the number of users of a client. After the last user, it closes a client that was dropped, and starts the
// timer that closes the client of a stand-in.
func (gs *fileClients) release(id caisson.ID, g *fileClient) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	g.users--
	switch {
	case g.users > 0:
		return
	case gs.open[id] != g: // The client was dropped while in use.
		gs.closeInBackground(g)
		return
	case g.standIn == nil:
		return
	}
	g.expire = time.AfterFunc(standInTTL, func() {
		gs.mu.Lock()
		idle := g.users == 0 && gs.open[id] == g
		if idle {
			delete(gs.open, id)
		}
		gs.mu.Unlock()
		if idle {
			gs.closeInBackground(g)
		}
	})
}

// closeInBackground closes a client that is unused and no longer in gs.open, in a background goroutine.
func (gs *fileClients) closeInBackground(g *fileClient) {
	if !gs.background.Start(func(context.Context) { g.close() }) {
		g.close()
	}
}

// drop removes the file client of a sandbox that is about to stop or to change its state, and closes it. The client of a
// stand-in that is in use is closed by its last user.
func (gs *fileClients) drop(id caisson.ID) {
	gs.mu.Lock()
	g := gs.open[id]
	delete(gs.open, id)
	closeNow := g != nil && (g.standIn == nil || g.users == 0) // if false, release closes the client
	gs.mu.Unlock()
	if closeNow {
		g.close()
	}
}

// client returns a new client for the files of a running sandbox. The client starts guestd in the sandbox as the guest's root.
func (gs *fileClients) client(id caisson.ID) *guestd.Client {
	return guestd.NewClient(func(ctx context.Context, args []string, stdin bool) (caisson.Process, error) {
		return execIn(ctx, gs.runtime, id, caisson.RuntimeExec{Command: append([]string{guestdPath}, args...), Stdin: stdin})
	})
}

// withClient calls use with the file client of a sandbox, and then releases the client. write must be true if use changes files.
func (f *Files) withClient(ctx context.Context, ref string, write bool, use func(*guestd.Client) error) error {
	client, release, err := f.access.acquire(ctx, ref, write)
	if err != nil {
		return err
	}
	defer release()
	return use(client)
}

// openStream returns the reader that open returns for the file client of a sandbox. The client is released when the reader is
// closed.
func (f *Files) openStream(ctx context.Context, ref string, open func(*guestd.Client) (io.ReadCloser, error)) (io.ReadCloser, error) {
	client, release, err := f.access.acquire(ctx, ref, false)
	if err != nil {
		return nil, err
	}
	r, err := open(client)
	if err != nil {
		release()
		return nil, err
	}
	return &releasingReader{r, sync.OnceFunc(release)}, nil
}

// releasingReader is a reader that releases a file client when it is closed.
type releasingReader struct {
	io.ReadCloser
	release func() // releases the file client
}

// Close closes the reader, and releases the file client of the sandbox.
func (r *releasingReader) Close() error {
	defer r.release()
	return r.ReadCloser.Close()
}

// ReadFile returns the content of a sandbox's file from offset, at most limit bytes; limit 0 means no limit.
func (f *Files) ReadFile(ctx context.Context, ref, path string, offset, limit int64) (io.ReadCloser, error) {
	return f.openStream(ctx, ref, func(c *guestd.Client) (io.ReadCloser, error) { return c.ReadFile(ctx, path, offset, limit) })
}

// ReadTree returns a file or directory of a sandbox as a tar archive.
func (f *Files) ReadTree(ctx context.Context, ref, path string) (io.ReadCloser, error) {
	return f.openStream(ctx, ref, func(c *guestd.Client) (io.ReadCloser, error) { return c.ReadTree(ctx, path) })
}

// WriteFile writes a file of a sandbox. If mode is 0, the mode of an existing file is kept, and a new file gets 0644.
func (f *Files) WriteFile(ctx context.Context, ref, path string, mode uint32, r io.Reader) (info *caisson.FileInfo, err error) {
	err = f.withClient(ctx, ref, true, func(c *guestd.Client) (err error) {
		info, err = c.WriteFile(ctx, path, mode, r)
		return err
	})
	return info, err
}

// WriteTree unpacks the tar archive r below a directory of a sandbox.
func (f *Files) WriteTree(ctx context.Context, ref, path string, r io.Reader) error {
	return f.withClient(ctx, ref, true, func(c *guestd.Client) error { return c.WriteTree(ctx, path, r) })
}

// ListFiles returns the entries of a directory of a sandbox.
func (f *Files) ListFiles(ctx context.Context, ref, path string) (list []caisson.FileInfo, err error) {
	err = f.withClient(ctx, ref, false, func(c *guestd.Client) (err error) {
		list, err = c.ListFiles(ctx, path)
		return err
	})
	return list, err
}

// StatFile returns the attributes of a file of a sandbox. It does not follow symlinks.
func (f *Files) StatFile(ctx context.Context, ref, path string) (info *caisson.FileInfo, err error) {
	err = f.withClient(ctx, ref, false, func(c *guestd.Client) (err error) {
		info, err = c.StatFile(ctx, path)
		return err
	})
	return info, err
}

// MakeDir creates a directory in a sandbox. If parents is true, missing parents are created, and path may exist.
func (f *Files) MakeDir(ctx context.Context, ref, path string, parents bool) error {
	return f.withClient(ctx, ref, true, func(c *guestd.Client) error { return c.MakeDir(ctx, path, parents) })
}

// MoveFile moves a file or directory of a sandbox.
func (f *Files) MoveFile(ctx context.Context, ref, from, to string) error {
	return f.withClient(ctx, ref, true, func(c *guestd.Client) error { return c.MoveFile(ctx, from, to) })
}

// RemoveFile removes a file of a sandbox. If recursive is true, it removes a directory with its contents.
func (f *Files) RemoveFile(ctx context.Context, ref, path string, recursive bool) error {
	return f.withClient(ctx, ref, true, func(c *guestd.Client) error { return c.RemoveFile(ctx, path, recursive) })
}

// WatchFiles reports changes of path and its entries; if recursive is true, also of everything below it.
func (f *Files) WatchFiles(ctx context.Context, ref, path string, recursive bool) (<-chan caisson.FileEvent, error) {
	sb, err := f.access.finder.findFor(ctx, ref, caisson.VerbExec)
	if err != nil {
		return nil, err
	}
	client, release, err := f.access.acquire(ctx, string(sb.ID), false)
	if err != nil {
		return nil, err
	}
	in, err := client.WatchFiles(ctx, path, recursive)
	if err != nil {
		release()
		return nil, err
	}
	out := make(chan caisson.FileEvent)
	go func() {
		defer release()
		defer close(out)
		for e := range in {
			select {
			case out <- e:
			case <-ctx.Done(): // the channel in is also closed when ctx ends
			}
		}
	}()
	return out, nil
}
