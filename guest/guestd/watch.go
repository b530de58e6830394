package guestd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The values of Op of a change, which are those of [caisson.FileEvent].
const (
	changeCreate   = "create"   // an entry was created, or renamed to this path
	changeWrite    = "write"    // the content of a file was written
	changeRemove   = "remove"   // an entry was removed
	changeRename   = "rename"   // an entry was renamed from this path
	changeChmod    = "chmod"    // attributes, such as permissions or the owner, have changed
	changeOverflow = "overflow" // some events were lost
)

// watchMask is the set of inotify events from which changes are derived.
const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF |
	unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB

// A watcher watches a file or a directory with inotify, and converts the events to changes.
type watcher struct {
	fs        *filesystem      // file system that contains root
	notify    *os.File         // the inotify instance
	fd        int              // file descriptor of the inotify instance, for system calls
	root      string           // absolute path of the watched file or directory
	recursive bool             // directories below root are watched too
	paths     map[int32]string // for each inotify watch descriptor, the path relative to root; "" for root
	changes   []change         // changes that have not been sent to the client yet
}

// watch executes opWatch: it sends changes to the client, and an end frame if the watched path is removed or renamed. It returns
// io.EOF when the stream from the client has ended.
func (s *server) watch(ctx context.Context, name string, recursive bool) error {
	w, err := s.fs.newWatcher(path.Clean(name), recursive)
	if ackErr := s.answer(frameResult, nil, err); err != nil || ackErr != nil {
		return ackErr
	}
	defer w.notify.Close()
	ended := make(chan struct{})
	// wake ends the read that waits for events. It does not close notify, because w.fd could become another file's descriptor.
	wake := func() { w.notify.SetReadDeadline(time.Unix(1, 0)) }
	go func() { // this goroutine runs until the stream from the client ends
		defer close(ended)
		s.in.ReadByte()
		wake()
	}()
	defer context.AfterFunc(ctx, wake)()
	buf := make([]byte, 64<<10)
	for {
		n, err := w.notify.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return io.EOF
		}
		if err != nil {
			return err
		}
		w.handleEvents(buf[:n])
		b := batch{s: s, started: true}
		for i := range w.changes {
			if err := b.item(&w.changes[i]); err != nil {
				return err
			}
		}
		w.changes = w.changes[:0]
		if err := b.flush(); err != nil {
			return err
		}
		if err := s.out.Flush(); err != nil {
			return err
		}
		if len(w.paths) == 0 {
			// Nothing is watched any more, because the watched path was removed or renamed.
			if err := s.answer(frameEnd, nil, nil); err != nil {
				return err
			}
			<-ended
			return io.EOF
		}
	}
}

// newWatcher returns a watcher of the file or directory at the path name; if recursive is set, also of the directories below.
func (s *filesystem) newWatcher(name string, recursive bool) (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &watcher{fs: s, fd: fd, notify: os.NewFile(uintptr(fd), "inotify"), root: name, recursive: recursive, paths: map[int32]string{}}
	if err := w.add("", false); err != nil {
		w.notify.Close()
		return nil, err
	}
	w.changes = w.changes[:0]
	return w, nil
}

// add begins to watch the path rel and, if the watcher is recursive, the directories below. If report is set, it reports existing
// entries as created, because they may have been created before the watch began.
func (w *watcher) add(rel string, report bool) error {
	flags := unix.O_PATH
	if rel != "" {
		flags |= unix.O_NOFOLLOW | unix.O_DIRECTORY
	}
	f, err := w.fs.open(path.Join(w.root, rel), flags, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	wd, err := unix.InotifyAddWatch(w.fd, procPath(f), watchMask)
	if err != nil {
		return &fs.PathError{Op: "watch", Path: path.Join(w.root, rel), Err: err}
	}
	w.paths[int32(wd)] = rel
	if !w.recursive {
		return nil
	}
	// The directory may have been renamed since it was opened above. Its events then report the rename.
	d, err := w.fs.open(path.Join(w.root, rel), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		if rel == "" && errors.Is(err, unix.ENOTDIR) {
			return nil // the watched path is a file and has no entries
		}
		return err
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		child := path.Join(rel, e.Name())
		if report {
			w.report(changeCreate, child)
		}
		if e.IsDir() {
			w.descend(child, report)
		}
	}
	return nil
}

// descend begins to watch the directory rel below the root. If it cannot be watched although it exists, descend reports an
// overflow, because events are missing.
func (w *watcher) descend(rel string, report bool) {
	err := w.add(rel, report)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
		w.report(changeOverflow, "")
	}
}

// unwatch ends the watches of the directory rel and of all directories below.
func (w *watcher) unwatch(rel string) {
	for wd, p := range w.paths {
		if p == rel || strings.HasPrefix(p, rel+"/") {
			unix.InotifyRmWatch(w.fd, uint32(wd))
			delete(w.paths, wd)
		}
	}
}

// handleEvents adds the changes that the inotify events in buf report.
func (w *watcher) handleEvents(buf []byte) {
	for len(buf) >= unix.SizeofInotifyEvent {
		ev := *(*unix.InotifyEvent)(unsafe.Pointer(&buf[0]))
		end := unix.SizeofInotifyEvent + int(ev.Len)
		if end > len(buf) {
			return
		}
		name, _, _ := bytes.Cut(buf[unix.SizeofInotifyEvent:end], []byte{0})
		buf = buf[end:]
		if ev.Mask&unix.IN_Q_OVERFLOW != 0 {
			w.report(changeOverflow, "")
			continue
		}
		if dir, ok := w.paths[ev.Wd]; ok {
			w.event(ev, path.Join(dir, string(name)), len(name) == 0)
		}
	}
}

// event handles one inotify event about the path rel. self means that rel itself is watched; otherwise its directory is.
func (w *watcher) event(ev unix.InotifyEvent, rel string, self bool) {
	dir := ev.Mask&unix.IN_ISDIR != 0
	switch {
	case ev.Mask&unix.IN_IGNORED != 0:
		delete(w.paths, ev.Wd)
	case self && rel != "": // ignored, because the watch of the parent directory reports the event too
	case ev.Mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		w.report(changeCreate, rel)
		if dir && w.recursive {
			w.descend(rel, true)
		}
	case ev.Mask&unix.IN_MOVED_FROM != 0:
		w.report(changeRename, rel)
		if dir {
			w.unwatch(rel)
		}
	case ev.Mask&unix.IN_MOVE_SELF != 0:
		w.report(changeRename, rel)
		clear(w.paths) // ends the watch, because the new path is unknown
	case ev.Mask&(unix.IN_DELETE|unix.IN_DELETE_SELF) != 0:
		w.report(changeRemove, rel)
	case ev.Mask&unix.IN_MODIFY != 0:
		w.report(changeWrite, rel)
	case ev.Mask&unix.IN_ATTRIB != 0:
		w.report(changeChmod, rel)
	}
}

// report adds a change, unless it equals the last change that was not sent yet: a program that writes in small pieces causes many
// equal events.
func (w *watcher) report(op, rel string) {
	if n := len(w.changes); n > 0 && w.changes[n-1].Op == op && string(w.changes[n-1].Path) == rel {
		return
	}
	w.changes = append(w.changes, change{Op: op, Path: []byte(rel)})
}
