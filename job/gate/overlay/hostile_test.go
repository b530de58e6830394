package overlay_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/gate/overlaytest"
)

// hostile makes an upper layer by hand, without an overlay.
func hostile(t *testing.T, prepare func(upper string)) (*overlay.Frozen, error) {
	t.Helper()
	testneed.Root(t)
	top := t.TempDir()
	gatetest.Must(t, unix.Mount("caisson-test", top, "tmpfs", 0, "")) // it is fast
	t.Cleanup(func() { unix.Unmount(top, unix.MNT_DETACH) })
	gatetest.Must(t, os.MkdirAll(top+"/upper", 0o755))
	gatetest.Must(t, os.MkdirAll(top+"/dst", 0o755))
	prepare(top + "/upper")
	upper := gatetest.OpenDir(t, top+"/upper")
	var marked bytes.Buffer
	if err := overlay.Mark(t.Context(), upper, &marked); err != nil {
		return nil, err
	}
	f, err := overlay.Freeze(t.Context(), upper, &marked, gatetest.OpenDir(t, top+"/dst"), overlay.FreezeLimits{File: 1 << 20, Bytes: 3 << 20})
	if err == nil {
		t.Cleanup(func() { f.Close() })
	}
	return f, err
}

func TestPromise4HostileUpper(t *testing.T) {
	set := func(path, name, value string) {
		t.Helper()
		gatetest.Must(t, unix.Lsetxattr(path, name, []byte(value), 0))
	}
	f, err := hostile(t, func(u string) {
		for _, name := range []string{"redirect", "metacopy", "opaque", "nlink", "whiteout", "unheard-of"} {
			gatetest.Write(t, u+"/file-"+name, "x")
			set(u+"/file-"+name, "trusted.overlay."+name, "y")
			gatetest.Write(t, u+"/dir-"+name+"/x", "x")
			set(u+"/dir-"+name, "trusted.overlay."+name, "y")
		}
		gatetest.Write(t, u+"/dir-x/x", "x")
		set(u+"/dir-x", "trusted.overlay.opaque", "x")
		gatetest.Write(t, u+"/forged/x", "x")
		for _, name := range []string{"opaque", "redirect", "metacopy"} {
			set(u+"/forged", "user.overlay."+name, "y")
			set(u+"/forged/x", "user.overlay."+name, "/etc")
		}
		set(u+"/forged/x", "trusted.overlay.origin", "\x00\xfb")
		for _, name := range []string{"new\nline", "\x1b[31mred", "\xff\xfe", "-rf", "a\u202eb", " ", "..."} {
			gatetest.Write(t, u+"/names/"+name, name)
		}
		gatetest.Write(t, u+"/sizes/1", strings.Repeat("1", 1<<20))
		gatetest.Write(t, u+"/sizes/2", strings.Repeat("2", 1<<20))
		gatetest.Write(t, u+"/sizes/3", strings.Repeat("3", 1<<20))
		gatetest.Write(t, u+"/sizes/4", strings.Repeat("4", 1<<20+1))
		gatetest.Write(t, u+"/secret", "x")
		gatetest.Must(t, os.Symlink("/etc/passwd", u+"/link"))
		gatetest.Must(t, os.Chmod(u+"/secret", 0o6755|os.ModeSetuid))
		l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		gatetest.Must(t, err)
		defer unix.Close(l)
		dir := gatetest.OpenDir(t, u)
		gatetest.Must(t, unix.Bind(l, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/socket", dir.Fd())}))
	})
	gatetest.Must(t, err)
	denied := map[string]bool{}
	for _, e := range f.Entries() {
		if e.Denied != "" {
			denied[e.Path] = true
			if e.Hash != "" || e.Content != "" {
				t.Errorf("%q is denied and kept", e.Path)
			}
		}
	}
	for _, path := range []string{
		"file-redirect", "file-metacopy", "file-opaque", "file-nlink", "file-whiteout", "file-unheard-of", "dir-redirect", "dir-metacopy",
		"dir-nlink", "dir-whiteout", "dir-unheard-of", "dir-x", "sizes/3", "sizes/4", "socket",
	} {
		if !denied[path] {
			t.Errorf("%s is not denied", path)
		}
		delete(denied, path)
	}
	if len(denied) > 0 {
		t.Errorf("denied, too: %v", denied)
	}
	if e, _ := f.Lookup("dir-opaque"); !e.Opaque {
		t.Error("an opaque directory is not")
	}
	if e, _ := f.Lookup("forged"); e.Opaque {
		t.Error("a directory with an attribute of the user's is opaque")
	}
	if e, ok := f.Lookup("names/\xff\xfe"); !ok || overlaytest.Content(t, f, e.Hash) != "\xff\xfe" {
		t.Error("a name that is not UTF-8 is lost")
	}
	if e, _ := f.Lookup("secret"); e.Mode != 0o4755 {
		t.Errorf("mode %o", e.Mode)
	}
	if e, _ := f.Lookup("link"); e.Link != "/etc/passwd" {
		t.Errorf("link %q", e.Link)
	}
}

func TestPromise4HostileRoot(t *testing.T) {
	_, err := hostile(t, func(u string) { gatetest.Must(t, unix.Lsetxattr(u, "trusted.overlay.redirect", []byte("/"), 0)) })
	if caisson.KindOf(err) != caisson.Denied {
		t.Errorf("a redirected layer: %v", err)
	}
}

// Deeper than paths can say.
func TestPromise4Deep(t *testing.T) {
	name := strings.Repeat("d", 200)
	f, err := hostile(t, func(u string) {
		for _, n := range []string{name, "e"} {
			fd, err := unix.Open(u, unix.O_DIRECTORY, 0)
			gatetest.Must(t, err)
			for range 300 {
				gatetest.Must(t, unix.Mkdirat(fd, n, 0o755))
				next, err := unix.Openat(fd, n, unix.O_DIRECTORY, 0)
				gatetest.Must(t, err)
				unix.Close(fd)
				fd = next
			}
			unix.Close(fd)
		}
	})
	gatetest.Must(t, err)
	depths, denied := map[byte]int{}, 0
	for _, e := range f.Entries() {
		depths[e.Path[0]] = fsat.Depth(e.Path)
		if e.Denied != "" {
			denied++
		}
	}
	if depths['e'] != fsat.MaxDepth || depths['d'] != 20 || denied != 2 {
		t.Errorf("depths %v, %d denied", depths, denied)
	}
}

func TestPromise4TooManyEntries(t *testing.T) {
	f, err := hostile(t, func(u string) {
		gatetest.Must(t, os.Mkdir(u+"/z", 0o755))
		gatetest.Write(t, u+"/a", "x")
		dir := gatetest.OpenDir(t, u+"/z")
		for i := range 200_000 {
			gatetest.Must(t, unix.Mkfifoat(int(dir.Fd()), fmt.Sprint(i), 0o644))
		}
	})
	gatetest.Must(t, err)
	if _, ok := f.Lookup("a"); !f.Cut() || !ok || len(f.Entries()) > overlay.MaxEntries {
		t.Errorf("%d entries, cut %v", len(f.Entries()), f.Cut())
	}
}

func TestFreezeIsCut(t *testing.T) {
	o := overlaytest.New(t, func(host string) { gatetest.Write(t, host+"/d/old", "old\n") })
	for i := range 10 {
		for j := range 10 {
			gatetest.Write(t, fmt.Sprintf("%s/%d/%d", o.Box, i, j), "x")
		}
	}
	dst, f := o.Freeze(overlay.FreezeLimits{Entries: 50})
	if n := len(f.Entries()); !f.Cut() || n < 40 || n > 50 {
		t.Errorf("%d entries, cut %v", n, f.Cut())
	}
	if diffs, _ := o.CompareWith(dst, compare.Options{}); len(diffs) != len(f.Entries()) {
		t.Errorf("%d differences", len(diffs))
	}
}

// The sandbox goes on while it is read: a directory becomes a symlink to elsewhere and a file a pipe, again and again.
func TestPromise4UpperChangesMeanwhile(t *testing.T) {
	o := overlaytest.New(t, func(string) {})
	gatetest.Write(t, o.Top+"/outside/x", "outside")
	gatetest.Write(t, o.Upper+"/d/x", "inside")
	gatetest.Must(t, os.Symlink(o.Top+"/outside", o.Upper+"/l"))
	gatetest.Write(t, o.Upper+"/f", "inside")
	gatetest.Must(t, gatetest.Mkfifo(o.Upper+"/p"))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			for _, pair := range [][2]string{{"/d", "/l"}, {"/f", "/p"}} {
				unix.Renameat2(unix.AT_FDCWD, o.Upper+pair[0], unix.AT_FDCWD, o.Upper+pair[1], unix.RENAME_EXCHANGE)
			}
			os.WriteFile(o.Upper+"/growing", bytes.Repeat([]byte("g"), i%5000), 0o644)
		}
	}()
	defer func() { close(stop); <-stopped }()
	for range 50 {
		_, f := o.Freeze(overlay.FreezeLimits{})
		for _, e := range f.Entries() {
			if e.Content == "" {
				continue
			}
			text := overlaytest.Content(t, f, e.Hash)
			if text != "inside" && text != strings.Repeat("g", int(e.Size)) {
				t.Fatalf("%s: %q", e.Path, text)
			}
		}
	}
}
