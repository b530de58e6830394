package gate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// copySite is a directory that was scanned, and a place for its copy.
type copySite struct {
	*overlay
	mask *Mask
}

func newCopySite(t *testing.T, prepare func(host string)) *copySite {
	t.Helper()
	top := t.TempDir()
	s := &copySite{overlay: &overlay{t: t, top: top, host: top + "/host"}}
	for _, d := range []string{"host", "copy", "base"} {
		check(t, os.Mkdir(filepath.Join(top, d), 0o755))
	}
	prepare(s.host)
	var err error
	s.manifest, err = os.Create(top + "/manifest")
	check(t, err)
	t.Cleanup(func() { s.manifest.Close() })
	s.mask, err = NewMask(DefaultHidden(), nil)
	check(t, err)
	_, err = Scan(t.Context(), s.dir("host"), s.mask, s.manifest)
	check(t, err)
	return s
}

// TestPromise2CopyHides: nothing that is hidden is in a copy, and nothing that has come to the place of what was scanned leads elsewhere.
func TestPromise2CopyHides(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "hunter2\n")
	s := newCopySite(t, func(host string) {
		for _, p := range []string{"a.txt", "dir/b.txt", "dir/deep/c.txt", ".env", "dir/.ssh/id", "swapped", "moved/x", "later"} {
			write(t, filepath.Join(host, p), p+"\n")
		}
		check(t, os.Symlink(secret, host+"/out"))
	})
	// Meanwhile things have changed.
	check(t, os.Remove(s.host+"/swapped"))
	check(t, os.Symlink(secret, s.host+"/swapped"))
	check(t, os.RemoveAll(s.host+"/moved"))
	check(t, os.Symlink(filepath.Dir(secret), s.host+"/moved"))
	write(t, filepath.Dir(secret)+"/x", "hunter2\n")
	check(t, os.Remove(s.host+"/later"))
	check(t, unix.Mkfifo(s.host+"/later", 0o644))
	write(t, s.host+"/new", "new\n")
	write(t, s.host+"/a.txt", "changed\n")
	got, err := Copy(t.Context(), s.dir("host"), s.manifest, s.dir("copy"), CopyLimits{})
	check(t, err)
	tree := treeText(t, s.top+"/copy")
	if strings.Contains(tree, "hunter2") {
		t.Errorf("a secret was copied:\n%s", tree)
	}
	var names []string
	for line := range strings.Lines(tree) {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	if want := "/a.txt /dir /dir/b.txt /dir/deep /dir/deep/c.txt /moved /out"; strings.Join(names, " ") != want {
		t.Errorf("copied\n%s\nwant\n%s", strings.Join(names, " "), want)
	}
	if got.Left != 3 || got.Files != 3 || !strings.Contains(tree, `/a.txt -rw-r--r-- "changed\n"`) {
		t.Errorf("%+v\n%s", got, tree)
	}
	// What had changed by then starts as the copy has it.
	check(t, BaseOfCopy(t.Context(), s.dir("copy"), s.manifest, s.dir("base"), BaseLimits{}))
	base, err := openBase(s.dir("base"))
	check(t, err)
	defer base.close()
	for path, rebased := range map[string]bool{"a.txt": true, "dir/b.txt": false} {
		if e := base.entries[path]; e == nil || e.rebased != rebased || len(base.text(e)) == 0 {
			t.Errorf("%s: %+v", path, e)
		}
	}
	check(t, Forget(s.dir("base"), []string{"a.txt", "dir"}))
	after, err := openBase(s.dir("base"))
	check(t, err)
	defer after.close()
	if after.entries["a.txt"] != nil || after.entries["dir/b.txt"] == nil {
		t.Errorf("forgotten: %+v", after.entries)
	}
}

// TestCopyLimits: what is too much is refused, and holes are nothing.
func TestCopyLimits(t *testing.T) {
	s := newCopySite(t, func(host string) {
		write(t, host+"/a", strings.Repeat("a", 1000))
		write(t, host+"/b", strings.Repeat("b", 1000))
		f, err := os.Create(host + "/sparse")
		check(t, err)
		check(t, f.Truncate(1<<40))
		_, err = f.WriteAt([]byte("data"), 1<<39)
		check(t, err)
		check(t, f.Close())
	})
	probe, err := os.Create(s.top + "/probe")
	check(t, err)
	defer probe.Close()
	a, err := os.Open(s.host + "/a")
	check(t, err)
	defer a.Close()
	shares := unix.IoctlFileClone(int(probe.Fd()), int(a.Fd())) == nil
	for i, c := range []struct {
		limits CopyLimits
		ok     bool
	}{{CopyLimits{}, true}, {CopyLimits{Bytes: 1500}, shares}, {CopyLimits{Entries: 2}, false}, {CopyLimits{Bytes: 10 << 10, Entries: 3}, true}} {
		name := fmt.Sprintf("copy%d", i)
		check(t, os.Mkdir(filepath.Join(s.top, name), 0o755))
		_, err := Copy(t.Context(), s.dir("host"), s.manifest, s.dir(name), c.limits)
		if (err == nil) != c.ok || err != nil && caisson.KindOf(err) != caisson.Exhausted {
			t.Errorf("%+v: %v", c.limits, err)
		}
		var st unix.Stat_t
		if err == nil {
			check(t, unix.Stat(filepath.Join(s.top, name, "sparse"), &st))
			if st.Size != 1<<40 || st.Blocks > 1000 {
				t.Errorf("sparse has %d bytes in %d blocks", st.Size, st.Blocks)
			}
		}
	}
}

// TestPromise4ToolCopies: the job has the rights of the directory's owner and no others.
func TestPromise4ToolCopies(t *testing.T) {
	for _, owner := range []int{0, 1234} {
		t.Run(fmt.Sprint(owner), func(t *testing.T) {
			s := newToolSite(t, owner)
			own(t, owner, s.host+"/index", "a\n", 0o600)
			own(t, owner, s.host+"/dir/b.txt", "b\n", 0o444)
			own(t, owner, s.host+"/dir/.env", "secret\n", 0o600)
			own(t, 4321, s.host+"/theirs", "x\n", 0o600)
			old := time.Unix(1_234_567_890, 987)
			check(t, os.Chtimes(s.host+"/dir/b.txt", old, old))
			check(t, os.Chmod(s.host+"/dir", 0o555))
			_, err := s.tool.Scan(t.Context(), s.dir("host"), DefaultHidden(), nil, s.manifest)
			check(t, err)
			check(t, os.Mkdir(s.top+"/copy", 0o700))
			check(t, os.Chown(s.top+"/copy", owner, owner))
			got, err := s.tool.Copy(t.Context(), s.dir("host"), s.manifest, s.dir("copy"), CopyLimits{})
			check(t, err)
			want := 2
			if owner == 0 {
				want++
			}
			if got.Files != want {
				t.Errorf("%+v", got)
			}
			check(t, filepath.WalkDir(s.top+"/copy", func(p string, _ os.DirEntry, err error) error {
				check(t, err)
				var st unix.Stat_t
				check(t, unix.Lstat(p, &st))
				if int(st.Uid) != owner || int(st.Gid) != owner || strings.HasSuffix(p, ".env") {
					t.Errorf("%s belongs to %d:%d", p, st.Uid, st.Gid)
				}
				return nil
			}))
			fi, err := os.Stat(s.top + "/copy/dir/b.txt")
			check(t, err)
			if !fi.ModTime().Equal(old) || fi.Mode() != 0o444 {
				t.Errorf("%v %v", fi.ModTime(), fi.Mode())
			}
			check(t, s.tool.BaseOfCopy(t.Context(), s.dir("copy"), s.manifest, s.dir("base"), BaseLimits{}))
			check(t, s.tool.Forget(t.Context(), s.dir("copy"), s.dir("base"), []string{"x"}))
			base, err := openBase(s.dir("base"))
			check(t, err)
			defer base.close()
			if e := base.entries["dir/b.txt"]; e == nil || string(base.text(e)) != "b\n" {
				t.Errorf("%+v", base.entries)
			}
			check(t, os.Mkdir(s.top+"/small", 0o700))
			check(t, os.Chown(s.top+"/small", owner, owner))
			_, err = s.tool.Copy(t.Context(), s.dir("host"), s.manifest, s.dir("small"), CopyLimits{Entries: 1})
			if caisson.KindOf(err) != caisson.Exhausted || !strings.Contains(caisson.MessageOf(err), "overlay") {
				t.Errorf("%v", err)
			}
		})
	}
}
