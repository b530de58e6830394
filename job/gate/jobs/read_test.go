package jobs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/workertest"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/gate/overlaytest"
	"github.com/caisson-dev/caisson/job/worker"
)

// guestBase is the first uid of the account in these tests.
const guestBase = caisson.LayerUIDBase + 5*caisson.UIDRange

// toolSite is a workspace of a user of the host, laid out as in the daemon: everything is beneath a directory that other users
// cannot access.
type toolSite struct {
	*overlaytest.Workspace
	jobs worker.Starter
}

func newToolSite(t *testing.T, owner int) *toolSite {
	t.Helper()
	r := workertest.Runner(t)
	top := t.TempDir()
	s := &toolSite{Workspace: &overlaytest.Workspace{T: t, Top: top, Host: top + "/host", Upper: top + "/upper"}, jobs: r}
	for name, uid := range map[string]int{"host": owner, "upper": guestBase, "mask": guestBase, "base": 0, "frozen": 0} {
		gatetest.Must(t, os.Mkdir(filepath.Join(top, name), 0o700))
		gatetest.Must(t, os.Chown(filepath.Join(top, name), uid, uid))
	}
	gatetest.Must(t, os.Chmod(top, 0o700))
	var err error
	s.Manifest, err = os.OpenFile(top+"/manifest", os.O_RDWR|os.O_CREATE, 0o600)
	gatetest.Must(t, err)
	t.Cleanup(func() { s.Manifest.Close() })
	return s
}

func TestPromise4ToolReadsConfined(t *testing.T) {
	for _, owner := range []int{0, 1234} {
		t.Run(fmt.Sprint(owner), func(t *testing.T) {
			s := newToolSite(t, owner)
			gatetest.Own(t, owner, s.Host+"/a.txt", gatetest.Seven, 0o600)
			gatetest.Own(t, owner, s.Host+"/dir/b.txt", gatetest.Seven, 0o644)
			gatetest.Own(t, owner, s.Host+"/dir/.env", "secret\n", 0o600)
			// Files that the owner cannot read are not read.
			gatetest.Own(t, 4321, s.Host+"/theirs", "x\n", 0o600)
			ctx := t.Context()
			result, err := baseline.RunScan(ctx, s.jobs, s.Dir("host"), baseline.DefaultHidden(), nil, s.Manifest)
			gatetest.Must(t, err)
			if result.Files != 4 || result.HiddenCount != 1 {
				t.Errorf("%+v", result)
			}
			gatetest.Must(t, baseline.RunCover(ctx, s.jobs, s.Manifest, s.Dir("mask")))
			var st unix.Stat_t
			gatetest.Must(t, unix.Lstat(s.Top+"/mask/dir/.env", &st))
			if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 || st.Uid != guestBase {
				t.Errorf("no whiteout: %+v", st)
			}
			gatetest.Must(t, baseline.RunSaveBase(ctx, s.jobs, s.Dir("host"), s.Manifest, s.Dir("base"), baseline.Limits{}))

			// Different users of the guest write files, one of them unreadable for others.
			gatetest.Own(t, guestBase, s.Upper+"/a.txt", strings.Replace(gatetest.Seven, "one", "1", 1), 0o600)
			gatetest.Own(t, guestBase+1000, s.Upper+"/new/private", "x\n", 0o600)
			gatetest.Must(t, unix.Mknod(s.Upper+"/gone", unix.S_IFCHR, 0))
			gatetest.Must(t, os.MkdirAll(s.Upper+"/dir", 0o755))
			gatetest.Must(t, os.Chmod(s.Upper+"/dir", 0o700))
			gatetest.Must(t, os.Chown(s.Upper+"/dir", guestBase, guestBase))
			gatetest.Must(t, unix.Setxattr(s.Upper+"/dir", "trusted.overlay.opaque", []byte("y"), 0))
			gatetest.Own(t, owner, s.Host+"/a.txt", strings.Replace(gatetest.Seven, "seven", "7", 1), 0o600)

			entries, cut, err := overlay.RunFreeze(ctx, s.jobs, s.Dir("upper"), s.Dir("frozen"), overlay.FreezeLimits{})
			gatetest.Must(t, err)
			if entries != 5 || cut {
				t.Errorf("%d entries, cut %v", entries, cut)
			}
			c, err := compare.RunChanges(ctx, s.jobs, s.Dir("host"), s.Manifest, s.Dir("base"), s.Dir("frozen"), compare.Options{Patch: true})
			gatetest.Must(t, err)
			want := strings.Join([]string{
				"modified a.txt moved merge", "mode dir 755 700", "removed dir/.env deny", "removed dir/b.txt", "added new", "added new/private",
			}, "\n")
			if got := overlaytest.Summary(c.Differences); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			f, err := overlay.OpenFrozen(s.Dir("frozen"))
			gatetest.Must(t, err)
			defer f.Close()
			if got := overlaytest.Content(t, f, c.Differences[0].Change.Hash); got != strings.NewReplacer("one", "1", "seven", "7").Replace(gatetest.Seven) {
				t.Errorf("merged into %q", got)
			}
			gatetest.Must(t, baseline.RunRebase(ctx, s.jobs, s.Dir("host"), s.Dir("base"), []baseline.AppliedPath{{Path: "gone", Node: gate.Node{}}}))
			for _, name := range []string{"base", "base/index", "base/pack", "frozen", "frozen/merged", "frozen/index"} {
				var st unix.Stat_t
				gatetest.Must(t, unix.Lstat(filepath.Join(s.Top, name), &st))
				if st.Uid != 0 {
					t.Errorf("%s belongs to %d", name, st.Uid)
				}
			}
		})
	}
}

// A layer that does not belong to a guest is not read with the rights of a guest.
func TestToolRefusesForeignLayers(t *testing.T) {
	s := newToolSite(t, 1234)
	gatetest.Must(t, os.Chown(s.Upper, 1234, 1234))
	if _, _, err := overlay.RunFreeze(t.Context(), s.jobs, s.Dir("upper"), s.Dir("frozen"), overlay.FreezeLimits{}); err == nil {
		t.Error("a directory of a host's user was frozen")
	}
}
