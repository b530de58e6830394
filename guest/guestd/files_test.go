package guestd

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

func write(t *testing.T, g guest, name, content string) {
	t.Helper()
	must[*caisson.FileInfo](t)(g.WriteFile(testContext(t), g.path(name), 0, strings.NewReader(content)))
}

func read(t *testing.T, g guest, name string, offset, limit int64) string {
	t.Helper()
	r := must[io.ReadCloser](t)(g.ReadFile(testContext(t), g.path(name), offset, limit))
	defer r.Close()
	return string(must[[]byte](t)(io.ReadAll(r)))
}

func TestReadAndWrite(t *testing.T) {
	guests(t, func(t *testing.T, g guest) {
		big := strings.Repeat("0123456789abcdef", 20_000)
		write(t, g, "a/b/c", big)
		for _, row := range []struct {
			offset, limit int64
			want          string
		}{
			{0, 0, big}, {1, 3, "123"}, {int64(len(big)) - 2, 10, "ef"}, {int64(len(big)), 0, ""}, {1 << 40, 0, ""}, {0, 1, "0"},
		} {
			if got := read(t, g, "a/b/c", row.offset, row.limit); got != row.want {
				t.Errorf("from %d, %d bytes: got %d bytes, want %d", row.offset, row.limit, len(got), len(row.want))
			}
		}
		write(t, g, "a/b/c", "")
		if got := read(t, g, "a/b/c", 0, 0); got != "" {
			t.Errorf("an empty file has %q", got)
		}
	})
}

func TestWriteKeepsModeAndFollowsLinks(t *testing.T) {
	guests(t, func(t *testing.T, g guest) {
		ctx := testContext(t)
		info := must[*caisson.FileInfo](t)(g.WriteFile(ctx, g.path("x"), 0o4750, strings.NewReader("x")))
		if info.Mode != "4750" || info.Size != 1 || info.Type != "file" || info.Path != g.path("x") || info.Name != "x" {
			t.Errorf("after writing: %+v", info)
		}
		if info = must[*caisson.FileInfo](t)(g.WriteFile(ctx, g.path("x"), 0, strings.NewReader("y"))); info.Mode != "4750" {
			t.Errorf("writing again changed the mode to %s", info.Mode)
		}
		// An absolute symlink is relative to the guest's root, a relative one to its directory.
		for link, target := range map[string]string{"abs": g.path("dir/../x"), "rel": "./x", "new": "sub/../made"} {
			os.Mkdir(g.file("sub"), 0o777)
			os.Chmod(g.file("sub"), 0o777)
			os.Mkdir(g.file("dir"), 0o777)
			if err := os.Symlink(target, g.file(link)); err != nil {
				t.Fatal(err)
			}
			write(t, g, link, "through "+link)
			if got := read(t, g, link, 0, 0); got != "through "+link {
				t.Errorf("%s: read %q", link, got)
			}
			if fi := must[os.FileInfo](t)(os.Lstat(g.file(link))); fi.Mode().Type() != fs.ModeSymlink {
				t.Errorf("%s is no longer a symlink", link)
			}
		}
		if got := read(t, g, "made", 0, 0); got != "through new" {
			t.Errorf("what a dangling link points to has %q", got)
		}
		if left := must[[]caisson.FileInfo](t)(g.ListFiles(ctx, g.path("."))); len(left) != 7 {
			t.Errorf("drafts were left: %v", left)
		}
	})
}

func TestOwnerSurvivesWriting(t *testing.T) {
	testneed.Root(t)
	guests(t, func(t *testing.T, g guest) {
		write(t, g, "x", "1")
		if err := os.Chown(g.file("x"), otherUID, otherUID); err != nil {
			t.Fatal(err)
		}
		info := must[*caisson.FileInfo](t)(g.WriteFile(testContext(t), g.path("x"), 0, strings.NewReader("2")))
		if info.UID != otherUID || info.GID != otherUID {
			t.Errorf("owner became %d:%d", info.UID, info.GID)
		}
	})
}

func TestList(t *testing.T) {
	guests(t, func(t *testing.T, g guest) {
		if got := must[[]caisson.FileInfo](t)(g.ListFiles(testContext(t), g.path("."))); len(got) != 0 {
			t.Fatalf("an empty directory has %v", got)
		}
		strange := "new\nline \x1b[31m \xff\xfe \u202e"
		write(t, g, strange, "1")
		os.Symlink("/no/where", g.file("link"))
		syscall.Mkfifo(g.file("fifo"), 0o600)
		for i := range 2500 {
			if err := os.WriteFile(g.file(fmt.Sprintf("many-%04d-%s", i, strings.Repeat("x", 200))), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got := must[[]caisson.FileInfo](t)(g.ListFiles(testContext(t), g.path(".")))
		if len(got) != 2503 {
			t.Fatalf("%d entries", len(got))
		}
		byName := map[string]caisson.FileInfo{}
		for _, e := range got {
			byName[e.Name] = e
		}
		if e := byName[strange]; e.Type != "file" || e.Path != g.path(strange) || e.Size != 1 {
			t.Errorf("the strange name: %+v", e)
		}
		if e := byName["link"]; e.Type != "symlink" || e.Target != "/no/where" {
			t.Errorf("the link: %+v", e)
		}
		if e := byName["fifo"]; e.Type != "fifo" {
			t.Errorf("the fifo: %+v", e)
		}
	})
}

func TestMoveAndRemove(t *testing.T) {
	guests(t, func(t *testing.T, g guest) {
		ctx := testContext(t)
		write(t, g, "d/e/f", "1")
		os.Symlink(g.path("d"), g.file("link"))
		for _, err := range []error{
			g.MakeDir(ctx, g.path("p/q/r"), true),
			g.MakeDir(ctx, g.path("p/q/r"), true),
			g.MoveFile(ctx, g.path("d/e"), g.path("p/moved")),
			g.RemoveFile(ctx, g.path("p/q/r"), false),
			g.RemoveFile(ctx, g.path("link"), true),
			g.RemoveFile(ctx, g.path("p"), true),
		} {
			if err != nil {
				t.Error(err)
			}
		}
		if info := must[*caisson.FileInfo](t)(g.StatFile(ctx, g.path("d"))); info.Type != "directory" {
			t.Errorf("removing a link to it harmed %+v", info)
		}
		if info := must[*caisson.FileInfo](t)(g.StatFile(ctx, "/")); info.Name != "/" || info.Type != "directory" {
			t.Errorf("the root: %+v", info)
		}
	})
}

func TestErrors(t *testing.T) {
	guests(t, func(t *testing.T, g guest) {
		ctx := testContext(t)
		write(t, g, "file", "1")
		write(t, g, "dir/in", "1")
		os.Symlink("loop", g.file("loop"))
		os.Symlink("nowhere", g.file("dangling"))
		syscall.Mkfifo(g.file("fifo"), 0o666)
		os.Chmod(g.file("fifo"), 0o666)
		drain := func(r io.ReadCloser, err error) error {
			if err == nil {
				r.Close()
			}
			return err
		}
		readFile := func(p string) error { return drain(g.ReadFile(ctx, p, 0, 0)) }
		writeFile := func(p string) error {
			_, err := g.WriteFile(ctx, p, 0, strings.NewReader("x"))
			return err
		}
		list := func(p string) error { _, err := g.ListFiles(ctx, p); return err }
		watch := func(p string) error { _, err := g.WatchFiles(ctx, p, true); return err }
		tree := func(p string) error { return drain(g.ReadTree(ctx, p)) }
		for i, row := range []struct {
			err  error
			kind caisson.Kind
		}{
			{readFile(g.path("none")), caisson.NotFound},
			{readFile(g.path("dangling")), caisson.NotFound},
			{readFile(g.path("loop")), caisson.Invalid},
			{readFile(g.path("dir")), caisson.Conflict},
			{readFile(g.path("fifo")), caisson.Conflict},
			{readFile(g.path("file/x")), caisson.Conflict},
			{readFile("relative"), caisson.Invalid},
			{readFile("/nul\x00"), caisson.Invalid},
			{readFile("/" + strings.Repeat("x", 300)), caisson.Invalid},
			{readFile("/" + strings.Repeat("x/", 3000)), caisson.Invalid},
			{writeFile(g.path("dir")), caisson.Conflict},
			{writeFile(g.path("fifo")), caisson.Conflict},
			{writeFile(g.path("file/x")), caisson.Conflict},
			{writeFile("/"), caisson.Conflict},
			{list(g.path("none")), caisson.NotFound},
			{list(g.path("file")), caisson.Conflict},
			{watch(g.path("none")), caisson.NotFound},
			{tree(g.path("none")), caisson.NotFound},
			{g.MakeDir(ctx, g.path("dir"), false), caisson.Conflict},
			{g.MakeDir(ctx, g.path("file"), true), caisson.Conflict},
			{g.MakeDir(ctx, g.path("no/parent"), false), caisson.NotFound},
			{g.MoveFile(ctx, g.path("none"), g.path("x")), caisson.NotFound},
			{g.MoveFile(ctx, g.path("file"), g.path("dir")), caisson.Conflict},
			{g.MoveFile(ctx, g.path("file"), g.path("fifo")), caisson.Conflict},
			{g.MoveFile(ctx, g.path("dir"), g.path("dir/sub")), caisson.Invalid},
			{g.RemoveFile(ctx, g.path("none"), false), caisson.NotFound},
			{g.RemoveFile(ctx, g.path("none"), true), caisson.NotFound},
			{g.RemoveFile(ctx, g.path("dir"), false), caisson.Conflict},
			{g.RemoveFile(ctx, "/", true), caisson.Denied},
			{g.WriteTree(ctx, g.path("none"), strings.NewReader("")), caisson.NotFound},
			{g.WriteTree(ctx, g.path("dir"), strings.NewReader(strings.Repeat("junk", 1000))), caisson.Invalid},
			{g.WriteTree(ctx, g.path("dir"), throughLink(t, "/etc")), caisson.Conflict},
			{g.WriteTree(ctx, g.path("dir"), throughLink(t, "nowhere")), caisson.Conflict},
		} {
			if caisson.KindOf(row.err) != row.kind || row.err == nil {
				t.Errorf("row %d: %v (%s), want %s", i, row.err, caisson.KindOf(row.err), row.kind)
			}
		}
	})
}

// throughLink returns an archive of a symlink and of a file behind it.
func throughLink(t *testing.T, target string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{{Typeflag: tar.TypeSymlink, Name: "through", Linkname: target}, {Typeflag: tar.TypeReg, Name: "through/x"}} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestDenied(t *testing.T) {
	testneed.Root(t)
	g := asUser(t)
	ctx := testContext(t)
	if err := os.WriteFile(g.file("secret"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := g.ReadFile(ctx, g.path("secret"), 0, 0)
	wantKind(t, err, caisson.Denied)
	_, err = g.WriteFile(ctx, "/usr/x", 0, strings.NewReader(""))
	wantKind(t, err, caisson.Denied)
	wantKind(t, g.RemoveFile(ctx, "/usr/bin", true), caisson.Denied)
	// Directories on the path need only search permission.
	os.Mkdir(g.file("pass"), 0o711)
	os.WriteFile(g.file("pass/x"), []byte("y"), 0o644)
	if got := read(t, g, "pass/x", 0, 0); got != "y" {
		t.Errorf("read %q", got)
	}
}

func TestDiskFull(t *testing.T) {
	testneed.Root(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		testneed.Skip(t, "mount", err.Error())
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	c := NewClient(inProcess(t, dir))
	defer c.Close()
	g := guest{Client: c, host: dir}
	write(t, g, "x", "old")
	endless := &counted{r: zeroReader{}}
	_, err := g.WriteFile(testContext(t), "/x", 0, endless)
	wantKind(t, err, caisson.Exhausted)
	if got := read(t, g, "x", 0, 0); got != "old" {
		t.Errorf("the old file has %q now", got)
	}
	if entries := must[[]os.DirEntry](t)(os.ReadDir(dir)); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

type zeroReader struct{}

func (zeroReader) Read(b []byte) (int, error) { clear(b); return len(b), nil }

type counted struct {
	r io.Reader
	n int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

func TestReadersSeeOldOrNew(t *testing.T) {
	guests(t, func(t *testing.T, g guest) {
		contents := []string{strings.Repeat("a", 300_000), strings.Repeat("b", 200_000)}
		write(t, g, "x", contents[0])
		stop := make(chan struct{})
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					b, err := os.ReadFile(g.file("x"))
					if err != nil || (string(b) != contents[0] && string(b) != contents[1]) {
						t.Errorf("a reader saw %d bytes, %v", len(b), err)
						return
					}
				}
			})
		}
		for i := range 40 {
			write(t, g, "x", contents[i%2])
		}
		close(stop)
		readers.Wait()
	})
}

func TestBrokenSourceChangesNothing(t *testing.T) {
	guests(t, func(t *testing.T, g guest) {
		ctx, cancel := context.WithCancel(testContext(t))
		write(t, g, "x", "old")
		for _, cause := range []error{errors.New("source broke"), io.ErrUnexpectedEOF} {
			_, err := g.WriteFile(ctx, g.path("x"), 0, io.MultiReader(strings.NewReader(strings.Repeat("n", 100_000)), failing{cause}))
			if !errors.Is(err, cause) {
				t.Errorf("error is %v, want %v", err, cause)
			}
		}
		_, err := g.WriteFile(ctx, g.path("x"), 0, io.MultiReader(strings.NewReader("new"), calling(cancel)))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		if got := read(t, g, "x", 0, 0); got != "old" {
			t.Errorf("now it is %.20q", got)
		}
		poll(t, "drafts are removed", func() bool {
			entries, err := os.ReadDir(g.host)
			return err == nil && len(entries) == 1
		})
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// calling is called by the first Read, and then yields zeros without end.
type calling func()

func (c calling) Read(b []byte) (int, error) { c(); clear(b); return len(b), nil }

func TestStreamsEndWithContext(t *testing.T) {
	guests(t, func(t *testing.T, g guest) {
		write(t, g, "x", strings.Repeat("x", 1<<20))
		// A large sparse file, which takes longer to read than the cancellation of ctx.
		if err := os.Truncate(g.file("x"), 4<<30); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(testContext(t))
		r := must[io.ReadCloser](t)(g.ReadFile(ctx, g.path("x"), 0, 0))
		tr := must[io.ReadCloser](t)(g.ReadTree(ctx, g.path("x")))
		defer r.Close()
		defer tr.Close()
		io.ReadFull(r, make([]byte, 10))
		cancel()
		for _, r := range []io.Reader{r, tr} {
			if _, err := io.Copy(io.Discard, r); !errors.Is(err, context.Canceled) {
				t.Errorf("after cancelling: %v", err)
			}
		}
		// An abandoned stream does not affect the next call.
		r = must[io.ReadCloser](t)(g.ReadFile(testContext(t), g.path("x"), 0, 0))
		r.Close()
		if got := read(t, g, "x", 0, 3); got != "xxx" {
			t.Errorf("read %q", got)
		}
	})
}

func TestProcessIsKeptAndReplaced(t *testing.T) {
	dir := t.TempDir()
	started := 0
	var last caisson.Process
	start := inProcess(t, dir)
	c := NewClient(func(ctx context.Context, args []string, stdin bool) (caisson.Process, error) {
		started++
		p, err := start(ctx, args, stdin)
		last = p
		return p, err
	})
	defer c.Close()
	g := guest{Client: c, host: dir}
	for range 3 {
		write(t, g, "x", "y")
		read(t, g, "x", 0, 0)
		_, err := c.StatFile(testContext(t), "/none")
		wantKind(t, err, caisson.NotFound)
	}
	if started != 1 {
		t.Errorf("%d processes for calls one after another", started)
	}
	last.Close()
	if got := read(t, g, "x", 0, 0); got != "y" || started != 2 {
		t.Errorf("after its end: %q, %d processes", got, started)
	}
	c.Close()
	if got := read(t, g, "x", 0, 0); got != "y" || started != 3 {
		t.Errorf("after Close: %q, %d processes", got, started)
	}
	r := bytes.NewReader(make([]byte, 1<<20))
	if _, err := c.WriteFile(testContext(t), "/y", 0, r); err != nil {
		t.Error(err)
	}
}
