package jobs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
	"github.com/caisson-dev/caisson/job/gate/overlaytest"
)

// copySite is a directory that was scanned, and the destination of its copy.
type copySite struct {
	*overlaytest.Workspace
	mask *baseline.Mask
}

func newCopySite(t *testing.T, prepare func(host string)) *copySite {
	t.Helper()
	top := t.TempDir()
	s := &copySite{Workspace: &overlaytest.Workspace{T: t, Top: top, Host: top + "/host"}}
	for _, d := range []string{"host", "copy", "base"} {
		gatetest.Must(t, os.Mkdir(filepath.Join(top, d), 0o755))
	}
	prepare(s.Host)
	var err error
	s.Manifest, err = os.Create(top + "/manifest")
	gatetest.Must(t, err)
	t.Cleanup(func() { s.Manifest.Close() })
	s.mask, err = baseline.NewMask(baseline.DefaultHidden(), nil)
	gatetest.Must(t, err)
	_, err = baseline.Scan(t.Context(), s.Dir("host"), s.mask, s.Manifest)
	gatetest.Must(t, err)
	return s
}

// TestPromise2CopyHides checks that a copy contains no hidden files, and that entries replaced since the scan do not lead
// outside.
func TestPromise2CopyHides(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	gatetest.Write(t, secret, "hunter2\n")
	s := newCopySite(t, func(host string) {
		for _, p := range []string{"a.txt", "dir/b.txt", "dir/deep/c.txt", ".env", "dir/.ssh/id", "swapped", "moved/x", "later"} {
			gatetest.Write(t, filepath.Join(host, p), p+"\n")
		}
		gatetest.Must(t, os.Symlink(secret, host+"/out"))
	})
	// The directory changes between the scan and the copy.
	gatetest.Must(t, os.Remove(s.Host+"/swapped"))
	gatetest.Must(t, os.Symlink(secret, s.Host+"/swapped"))
	gatetest.Must(t, os.RemoveAll(s.Host+"/moved"))
	gatetest.Must(t, os.Symlink(filepath.Dir(secret), s.Host+"/moved"))
	gatetest.Write(t, filepath.Dir(secret)+"/x", "hunter2\n")
	gatetest.Must(t, os.Remove(s.Host+"/later"))
	gatetest.Must(t, unix.Mkfifo(s.Host+"/later", 0o644))
	gatetest.Write(t, s.Host+"/new", "new\n")
	gatetest.Write(t, s.Host+"/a.txt", "changed\n")
	got, err := baseline.Copy(t.Context(), s.Dir("host"), s.Manifest, s.Dir("copy"), baseline.CopyLimits{})
	gatetest.Must(t, err)
	tree := gatetest.TreeText(t, s.Top+"/copy")
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
	// The base of changed files is the state in the copy.
	gatetest.Must(t, baseline.SaveBaseOfCopy(t.Context(), s.Dir("copy"), s.Manifest, s.Dir("base"), baseline.Limits{}))
	base, err := baseline.Open(s.Dir("base"))
	gatetest.Must(t, err)
	defer base.Close()
	for path, rebased := range map[string]bool{"a.txt": true, "dir/b.txt": false} {
		if e := base.Entries[path]; e == nil || e.Rebased != rebased || len(base.Text(e)) == 0 {
			t.Errorf("%s: %+v", path, e)
		}
	}
	gatetest.Must(t, baseline.Forget(s.Dir("base"), []string{"a.txt", "dir"}))
	after, err := baseline.Open(s.Dir("base"))
	gatetest.Must(t, err)
	defer after.Close()
	if after.Entries["a.txt"] != nil || after.Entries["dir/b.txt"] == nil {
		t.Errorf("forgotten: %+v", after.Entries)
	}
}

// TestCopyLimits checks that directories beyond the limits are refused, and that holes do not count.
func TestCopyLimits(t *testing.T) {
	s := newCopySite(t, func(host string) {
		gatetest.Write(t, host+"/a", strings.Repeat("a", 1000))
		gatetest.Write(t, host+"/b", strings.Repeat("b", 1000))
		f, err := os.Create(host + "/sparse")
		gatetest.Must(t, err)
		gatetest.Must(t, f.Truncate(1<<40))
		_, err = f.WriteAt([]byte("data"), 1<<39)
		gatetest.Must(t, err)
		gatetest.Must(t, f.Close())
	})
	probe, err := os.Create(s.Top + "/probe")
	gatetest.Must(t, err)
	defer probe.Close()
	a, err := os.Open(s.Host + "/a")
	gatetest.Must(t, err)
	defer a.Close()
	shares := unix.IoctlFileClone(int(probe.Fd()), int(a.Fd())) == nil
	for i, c := range []struct {
		limits baseline.CopyLimits
		ok     bool
	}{{baseline.CopyLimits{}, true}, {baseline.CopyLimits{Bytes: 1500}, shares}, {baseline.CopyLimits{Entries: 2}, false}, {baseline.CopyLimits{Bytes: 10 << 10, Entries: 3}, true}} {
		name := fmt.Sprintf("copy%d", i)
		gatetest.Must(t, os.Mkdir(filepath.Join(s.Top, name), 0o755))
		_, err := baseline.Copy(t.Context(), s.Dir("host"), s.Manifest, s.Dir(name), c.limits)
		if (err == nil) != c.ok || err != nil && caisson.KindOf(err) != caisson.Exhausted {
			t.Errorf("%+v: %v", c.limits, err)
		}
		var st unix.Stat_t
		if err == nil {
			gatetest.Must(t, unix.Stat(filepath.Join(s.Top, name, "sparse"), &st))
			if st.Size != 1<<40 || st.Blocks > 1000 {
				t.Errorf("sparse has %d bytes in %d blocks", st.Size, st.Blocks)
			}
		}
	}
}

// TestPromise4ToolCopies checks that the job has the rights of the directory's owner and no others.
func TestPromise4ToolCopies(t *testing.T) {
	for _, owner := range []int{0, 1234} {
		t.Run(fmt.Sprint(owner), func(t *testing.T) {
			s := newToolSite(t, owner)
			gatetest.Own(t, owner, s.Host+"/index", "a\n", 0o600)
			gatetest.Own(t, owner, s.Host+"/dir/b.txt", "b\n", 0o444)
			gatetest.Own(t, owner, s.Host+"/dir/.env", "secret\n", 0o600)
			gatetest.Own(t, 4321, s.Host+"/theirs", "x\n", 0o600)
			old := time.Unix(1_234_567_890, 987)
			gatetest.Must(t, os.Chtimes(s.Host+"/dir/b.txt", old, old))
			gatetest.Must(t, os.Chmod(s.Host+"/dir", 0o555))
			_, err := baseline.RunScan(t.Context(), s.jobs, s.Dir("host"), baseline.DefaultHidden(), nil, s.Manifest)
			gatetest.Must(t, err)
			gatetest.Must(t, os.Mkdir(s.Top+"/copy", 0o700))
			gatetest.Must(t, os.Chown(s.Top+"/copy", owner, owner))
			got, err := baseline.RunCopy(t.Context(), s.jobs, s.Dir("host"), s.Manifest, s.Dir("copy"), baseline.CopyLimits{})
			gatetest.Must(t, err)
			want := 2
			if owner == 0 {
				want++
			}
			if got.Files != want {
				t.Errorf("%+v", got)
			}
			gatetest.Must(t, filepath.WalkDir(s.Top+"/copy", func(p string, _ os.DirEntry, err error) error {
				gatetest.Must(t, err)
				var st unix.Stat_t
				gatetest.Must(t, unix.Lstat(p, &st))
				if int(st.Uid) != owner || int(st.Gid) != owner || strings.HasSuffix(p, ".env") {
					t.Errorf("%s belongs to %d:%d", p, st.Uid, st.Gid)
				}
				return nil
			}))
			fi, err := os.Stat(s.Top + "/copy/dir/b.txt")
			gatetest.Must(t, err)
			if !fi.ModTime().Equal(old) || fi.Mode() != 0o444 {
				t.Errorf("%v %v", fi.ModTime(), fi.Mode())
			}
			gatetest.Must(t, baseline.RunSaveBaseOfCopy(t.Context(), s.jobs, s.Dir("copy"), s.Manifest, s.Dir("base"), baseline.Limits{}))
			gatetest.Must(t, baseline.RunForget(t.Context(), s.jobs, s.Dir("copy"), s.Dir("base"), []string{"x"}))
			base, err := baseline.Open(s.Dir("base"))
			gatetest.Must(t, err)
			defer base.Close()
			if e := base.Entries["dir/b.txt"]; e == nil || string(base.Text(e)) != "b\n" {
				t.Errorf("%+v", base.Entries)
			}
			gatetest.Must(t, os.Mkdir(s.Top+"/small", 0o700))
			gatetest.Must(t, os.Chown(s.Top+"/small", owner, owner))
			_, err = baseline.RunCopy(t.Context(), s.jobs, s.Dir("host"), s.Manifest, s.Dir("small"), baseline.CopyLimits{Entries: 1})
			if caisson.KindOf(err) != caisson.Exhausted || !strings.Contains(caisson.MessageOf(err), "overlay") {
				t.Errorf("%v", err)
			}
		})
	}
}
