package apitest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// node is one file. It is never changed, only replaced, so that forks may share it.
type node struct {
	dir  bool
	data []byte
	mode uint32
	time time.Time
}

type watcher struct {
	dir       string
	recursive bool
	ctx       context.Context
	events    chan caisson.FileEvent
}

type fileCore struct{ m *Memory }

func info(p string, n *node) caisson.FileInfo {
	kind := "file"
	if n.dir {
		kind = "directory"
	}
	return caisson.FileInfo{
		Name: path.Base(p), Path: p, Type: kind, Size: int64(len(n.data)), Mode: fmt.Sprintf("%04o", n.mode), ModTime: n.time,
	}
}

func missing(p string) error { return caisson.Errorf(caisson.NotFound, "there is no file %.100q", p) }

// with calls fn with the sandbox under the lock.
func (c fileCore) with(ctx context.Context, ref string, fn func(b *box) error) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	b, err := c.m.use(ctx, ref, caisson.VerbFiles)
	if err != nil {
		return err
	}
	return fn(b)
}

func (b *box) put(p string, n *node) {
	for dir := path.Dir(p); b.files[dir] == nil; dir = path.Dir(dir) {
		b.files[dir] = &node{dir: true, mode: 0o755}
	}
	n.time = time.Now().UTC()
	b.files[p] = n
	b.tell("write", p)
}

func (b *box) tell(op, p string) {
	for _, w := range b.watch {
		if path.Dir(p) == w.dir || w.recursive && strings.HasPrefix(p, strings.TrimSuffix(w.dir, "/")+"/") {
			select {
			case w.events <- caisson.FileEvent{Op: op, Path: p}:
			default:
			}
		}
	}
}

func (c fileCore) ReadFile(ctx context.Context, ref, p string, offset, limit int64) (r io.ReadCloser, err error) {
	err = c.with(ctx, ref, func(b *box) error {
		n := b.files[path.Clean(p)]
		if n == nil {
			return missing(p)
		}
		if n.dir {
			return caisson.Errorf(caisson.Conflict, "%s is a directory", p)
		}
		data := n.data[min(offset, int64(len(n.data))):]
		if limit > 0 {
			data = data[:min(limit, int64(len(data)))]
		}
		r = io.NopCloser(bytes.NewReader(data))
		if strings.HasSuffix(p, ".broken") {
			r = io.NopCloser(io.MultiReader(r, failing{}))
		}
		return nil
	})
	return r, err
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("disk on fire") }

func (c fileCore) WriteFile(ctx context.Context, ref, p string, mode uint32, r io.Reader) (out *caisson.FileInfo, err error) {
	if err := c.with(ctx, ref, func(*box) error { return nil }); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Unavailable, "the upload broke off")
	}
	err = c.with(ctx, ref, func(b *box) error {
		if old := b.files[p]; mode == 0 && old != nil {
			mode = old.mode
		} else if mode == 0 {
			mode = 0o644
		}
		b.put(p, &node{data: data, mode: mode})
		i := info(p, b.files[p])
		out = &i
		return nil
	})
	return out, err
}

func (c fileCore) ListFiles(ctx context.Context, ref, p string) (out []caisson.FileInfo, err error) {
	err = c.with(ctx, ref, func(b *box) error {
		n := b.files[p]
		if n == nil {
			return missing(p)
		}
		if !n.dir {
			return caisson.Errorf(caisson.Conflict, "%s is not a directory", p)
		}
		for name, n := range b.files {
			if name != "/" && path.Dir(name) == p {
				out = append(out, info(name, n))
			}
		}
		slices.SortFunc(out, func(a, b caisson.FileInfo) int { return strings.Compare(a.Name, b.Name) })
		return nil
	})
	return out, err
}

func (c fileCore) StatFile(ctx context.Context, ref, p string) (out *caisson.FileInfo, err error) {
	err = c.with(ctx, ref, func(b *box) error {
		n := b.files[p]
		if n == nil {
			return missing(p)
		}
		i := info(p, n)
		out = &i
		return nil
	})
	return out, err
}

func (c fileCore) MakeDir(ctx context.Context, ref, p string, parents bool) error {
	return c.with(ctx, ref, func(b *box) error {
		switch {
		case b.files[p] != nil && parents:
			return nil
		case b.files[p] != nil:
			return caisson.Errorf(caisson.Conflict, "%s exists", p)
		case b.files[path.Dir(p)] == nil && !parents:
			return missing(path.Dir(p))
		}
		b.put(p, &node{dir: true, mode: 0o755})
		return nil
	})
}

func (c fileCore) MoveFile(ctx context.Context, ref, from, to string) error {
	return c.with(ctx, ref, func(b *box) error {
		if b.files[from] == nil {
			return missing(from)
		}
		b.put(to, b.files[from])
		delete(b.files, from)
		return nil
	})
}

func (c fileCore) RemoveFile(ctx context.Context, ref, p string, recursive bool) error {
	return c.with(ctx, ref, func(b *box) error {
		if b.files[p] == nil {
			return missing(p)
		}
		for name := range b.files {
			if strings.HasPrefix(name, p+"/") {
				if !recursive {
					return caisson.Errorf(caisson.Conflict, "%s is not empty", p)
				}
				delete(b.files, name)
			}
		}
		delete(b.files, p)
		b.tell("remove", p)
		return nil
	})
}

func (c fileCore) WatchFiles(ctx context.Context, ref, p string, recursive bool) (<-chan caisson.FileEvent, error) {
	w := &watcher{dir: p, recursive: recursive, ctx: ctx, events: make(chan caisson.FileEvent, 64)}
	if err := c.with(ctx, ref, func(b *box) error {
		if b.files[p] == nil {
			return missing(p)
		}
		b.watch = append(b.watch, w)
		return nil
	}); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() {
		c.m.mu.Lock()
		defer c.m.mu.Unlock()
		for _, b := range c.m.sandboxes {
			b.watch = slices.DeleteFunc(b.watch, func(o *watcher) bool { return o == w })
		}
		close(w.events)
	})
	return w.events, nil
}

func (c fileCore) ReadTree(ctx context.Context, ref, p string) (io.ReadCloser, error) {
	var buf bytes.Buffer
	err := c.with(ctx, ref, func(b *box) error {
		if b.files[p] == nil {
			return missing(p)
		}
		tw := tar.NewWriter(&buf)
		var names []string
		for name := range b.files {
			if name == p || strings.HasPrefix(name, p+"/") {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			n := b.files[name]
			h := &tar.Header{Name: strings.TrimPrefix(name, path.Dir(p)), Mode: int64(n.mode), Size: int64(len(n.data)), Typeflag: tar.TypeReg}
			h.Name = strings.TrimPrefix(h.Name, "/")
			if n.dir {
				h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
			}
			if err := tw.WriteHeader(h); err != nil {
				return err
			}
			if _, err := tw.Write(n.data); err != nil {
				return err
			}
		}
		return tw.Close()
	})
	return io.NopCloser(&buf), err
}

func (c fileCore) WriteTree(ctx context.Context, ref, p string, r io.Reader) error {
	if _, err := c.StatFile(ctx, ref, p); err != nil {
		return err
	}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			_, err := io.Copy(io.Discard, r)
			return err
		}
		if err != nil {
			return caisson.Wrap(err, caisson.Invalid, "this is not a tar archive")
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			return caisson.Wrap(err, caisson.Unavailable, "the upload broke off")
		}
		if err := c.with(ctx, ref, func(b *box) error {
			b.put(path.Join(p, h.Name), &node{dir: h.Typeflag == tar.TypeDir, data: data, mode: uint32(h.Mode)})
			return nil
		}); err != nil {
			return err
		}
	}
}
