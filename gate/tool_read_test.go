package gate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/workertest"
)

// guestBase is the first uid of the account in these tests.
const guestBase = caisson.LayerUIDBase + 5*caisson.UIDRange

// toolSite is a workspace of a user of the host, as the core lays it out: everything beneath a directory that is closed to others.
type toolSite struct {
	*overlay
	tool *Tool
}

func newToolSite(t *testing.T, owner int) *toolSite {
	t.Helper()
	r := workertest.Runner(t)
	top := t.TempDir()
	s := &toolSite{overlay: &overlay{t: t, top: top, host: top + "/host", upper: top + "/upper"}, tool: NewTool(r)}
	for name, uid := range map[string]int{"host": owner, "upper": guestBase, "mask": guestBase, "base": 0, "frozen": 0} {
		check(t, os.Mkdir(filepath.Join(top, name), 0o700))
		check(t, os.Chown(filepath.Join(top, name), uid, uid))
	}
	check(t, os.Chmod(top, 0o700))
	var err error
	s.manifest, err = os.OpenFile(top+"/manifest", os.O_RDWR|os.O_CREATE, 0o600)
	check(t, err)
	t.Cleanup(func() { s.manifest.Close() })
	return s
}

func TestPromise4ToolReadsConfined(t *testing.T) {
	for _, owner := range []int{0, 1234} {
		t.Run(fmt.Sprint(owner), func(t *testing.T) {
			s := newToolSite(t, owner)
			own(t, owner, s.host+"/a.txt", seven, 0o600)
			own(t, owner, s.host+"/dir/b.txt", seven, 0o644)
			own(t, owner, s.host+"/dir/.env", "secret\n", 0o600)
			// What the owner may not read is not read for them.
			own(t, 4321, s.host+"/theirs", "x\n", 0o600)
			ctx := t.Context()
			result, err := s.tool.Scan(ctx, s.dir("host"), DefaultHidden(), nil, s.manifest)
			check(t, err)
			if result.Files != 4 || result.HiddenCount != 1 {
				t.Errorf("%+v", result)
			}
			check(t, s.tool.Cover(ctx, s.manifest, s.dir("mask")))
			var st unix.Stat_t
			check(t, unix.Lstat(s.top+"/mask/dir/.env", &st))
			if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0 || st.Uid != guestBase {
				t.Errorf("no whiteout: %+v", st)
			}
			check(t, s.tool.Base(ctx, s.dir("host"), s.manifest, s.dir("base"), BaseLimits{}))

			// Different users of the guest write, one of them for nobody else's eyes.
			own(t, guestBase, s.upper+"/a.txt", strings.Replace(seven, "one", "1", 1), 0o600)
			own(t, guestBase+1000, s.upper+"/new/private", "x\n", 0o600)
			check(t, unix.Mknod(s.upper+"/gone", unix.S_IFCHR, 0))
			check(t, os.MkdirAll(s.upper+"/dir", 0o755))
			check(t, os.Chmod(s.upper+"/dir", 0o700))
			check(t, os.Chown(s.upper+"/dir", guestBase, guestBase))
			check(t, unix.Setxattr(s.upper+"/dir", "trusted.overlay.opaque", []byte("y"), 0))
			own(t, owner, s.host+"/a.txt", strings.Replace(seven, "seven", "7", 1), 0o600)

			entries, cut, err := s.tool.Freeze(ctx, s.dir("upper"), s.dir("frozen"), FreezeLimits{})
			check(t, err)
			if entries != 5 || cut {
				t.Errorf("%d entries, cut %v", entries, cut)
			}
			c, err := s.tool.Compare(ctx, s.dir("host"), s.manifest, s.dir("base"), s.dir("frozen"), CompareOptions{Patch: true})
			check(t, err)
			want := strings.Join([]string{
				"modified a.txt moved merge", "mode dir 755 700", "removed dir/.env deny", "removed dir/b.txt", "added new", "added new/private",
			}, "\n")
			if got := summary(c.Differences); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			f, err := OpenFrozen(s.dir("frozen"))
			check(t, err)
			defer f.Close()
			if got := contentOf(t, f, c.Differences[0].Change.Hash); got != strings.NewReplacer("one", "1", "seven", "7").Replace(seven) {
				t.Errorf("merged into %q", got)
			}
			check(t, s.tool.Rebase(ctx, s.dir("host"), s.dir("base"), []Applied{{Path: "gone", Node: Node{}}}))
			for _, name := range []string{"base", "base/index", "base/pack", "frozen", "frozen/merged", "frozen/index"} {
				var st unix.Stat_t
				check(t, unix.Lstat(filepath.Join(s.top, name), &st))
				if st.Uid != 0 {
					t.Errorf("%s belongs to %d", name, st.Uid)
				}
			}
		})
	}
}

// A layer that does not belong to a guest is not read with a guest's rights.
func TestToolRefusesForeignLayers(t *testing.T) {
	s := newToolSite(t, 1234)
	check(t, os.Chown(s.upper, 1234, 1234))
	if _, _, err := s.tool.Freeze(t.Context(), s.dir("upper"), s.dir("frozen"), FreezeLimits{}); err == nil {
		t.Error("a directory of a host's user was frozen")
	}
}
