package compare_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/gate/overlaytest"
)

// Changes of a sandbox while the host changes as well.
func TestCompareMoved(t *testing.T) {
	edit := func(name, content string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { gatetest.Write(t, dir+"/"+name, content) }
	}
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) { gatetest.Must(t, os.RemoveAll(dir+"/"+name)) }
	}
	chmod := func(name string, mode os.FileMode) func(*testing.T, string) {
		return func(t *testing.T, dir string) { gatetest.Must(t, os.Chmod(dir+"/"+name, mode)) }
	}
	top, end := strings.Replace(gatetest.Seven, "one", "1", 1), strings.Replace(gatetest.Seven, "seven", "7", 1)
	both := strings.Replace(top, "seven", "7", 1)
	tests := []struct {
		name      string
		box, host func(t *testing.T, dir string)
		want      string
		merged    string
	}{
		{"both, apart", edit("a.txt", top), edit("a.txt", end), "modified a.txt moved merge", both},
		{"both, the same lines", edit("a.txt", top), edit("a.txt", strings.ToUpper(gatetest.Seven)), "modified a.txt moved clash", ""},
		{"both, the same", edit("a.txt", top), edit("a.txt", top), "", ""},
		{"the host, with more", edit("a.txt", top), edit("a.txt", both), "", ""},
		{"binary", edit("a.txt", "\x00"+gatetest.Seven), edit("a.txt", end), "modified a.txt moved clash", ""},
		{"only the host", func(t *testing.T, box string) { gatetest.Must(t, os.Chown(box+"/a.txt", 1, 1)) }, edit("a.txt", end), "", ""},
		{"the host touched it", edit("a.txt", top), edit("a.txt", gatetest.Seven), "modified a.txt", ""},
		{"mode and content", chmod("a.txt", 0o755), edit("a.txt", end), "mode a.txt 644 755 moved merge", end},
		{"content and mode", edit("a.txt", end), chmod("a.txt", 0o755), "modified a.txt moved merge", end},
		{"both modes", chmod("a.txt", 0o755), chmod("a.txt", 0o600), "mode a.txt 644 755 moved clash", ""},
		{"the same modes", chmod("a.txt", 0o755), chmod("a.txt", 0o755), "", ""},
		{"modes of directories", chmod("dir", 0o700), chmod("dir", 0o750), "mode dir 755 700 moved clash", ""},
		{"the host deleted it", edit("a.txt", top), remove("a.txt"), "modified a.txt moved clash", ""},
		{"deleted what the host edited", remove("a.txt"), edit("a.txt", top), "removed a.txt moved clash", ""},
		{"both deleted it", remove("a.txt"), remove("a.txt"), "", ""},
		{"both added it", edit("new", "x\n"), edit("new", "y\n"), "added new moved clash", ""},
		{"both added the same", edit("new", "x\n"), edit("new", "x\n"), "", ""},
		{"both added a directory", edit("new/x", "x\n"), edit("new/y", "y\n"), "added new/x", ""},
		{"a directory and a file", edit("new/x", "x\n"), edit("new", "y\n"), "added new moved clash\nadded new/x clash", ""},
		{"deleted a directory where the host has a new file", remove("dir"), edit("dir/sub/new", "x\n"),
			"removed dir clash\nremoved dir/b.txt\nremoved dir/c.txt\nremoved dir/sub clash\nremoved dir/sub/d.txt", ""},
		{"deleted a directory of which the host changed a file", remove("dir"), edit("dir/sub/d.txt", "new\n"),
			"removed dir clash\nremoved dir/b.txt\nremoved dir/c.txt\nremoved dir/sub clash\nremoved dir/sub/d.txt moved clash", ""},
		{"the host deleted the directory", func(t *testing.T, box string) {
			gatetest.Write(t, box+"/dir/b.txt", "new\n")
			gatetest.Write(t, box+"/dir/sub/new", "new\n")
		}, remove("dir"), "modified dir/b.txt moved clash\nadded dir/sub/new clash", ""},
		{"the directory is a symlink now", func(t *testing.T, box string) {
			gatetest.Write(t, box+"/dir/b.txt", "new\n")
			gatetest.Write(t, box+"/dir/sub/new", "new\n")
			gatetest.Must(t, os.Remove(box+"/dir/c.txt"))
		}, func(t *testing.T, host string) {
			gatetest.Must(t, os.Rename(host+"/dir", host+"/elsewhere"))
			gatetest.Must(t, os.Symlink("elsewhere", host+"/dir"))
		}, "modified dir/b.txt clash\nremoved dir/c.txt clash\nadded dir/sub/new clash", ""},
		{"renamed what the host edited", func(t *testing.T, box string) { gatetest.Must(t, os.Rename(box+"/a.txt", box+"/z.txt")) },
			edit("a.txt", end), "removed a.txt moved clash\nadded z.txt", ""},
		{"renamed to where the host has a file", func(t *testing.T, box string) { gatetest.Must(t, os.Rename(box+"/a.txt", box+"/z.txt")) },
			edit("z.txt", end), "removed a.txt\nadded z.txt moved clash", ""},
		{"the link", func(t *testing.T, box string) {
			gatetest.Must(t, os.Remove(box+"/link"))
			gatetest.Must(t, os.Symlink("x", box+"/link"))
		}, func(t *testing.T, host string) {
			gatetest.Must(t, os.Remove(host+"/link"))
			gatetest.Must(t, os.Symlink("y", host+"/link"))
		}, "modified link moved clash", ""},
		{"a device took its place", edit("a.txt", top), func(t *testing.T, host string) {
			gatetest.Must(t, os.Remove(host+"/a.txt"))
			gatetest.Must(t, gatetest.Mkfifo(host+"/a.txt"))
		}, "modified a.txt deny", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := overlaytest.New(t, overlaytest.PrepareHost(t))
			tt.box(t, o.Box)
			tt.host(t, o.Host)
			diffs, f := o.Compare(compare.Options{Patch: true})
			if got := overlaytest.Summary(diffs); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
			if tt.name == "both, the same lines" { // the patch is shown so that a person can choose
				if p := diffs[0].Change.Patch; !strings.Contains(p, "-ONE\n") || !strings.Contains(p, "+1\n") {
					t.Errorf("the patch is %q", p)
				}
			}
			if tt.merged != "" {
				if got := overlaytest.Content(t, f, diffs[0].Change.Hash); got != tt.merged {
					t.Errorf("merged into %q", got)
				}
			}
			applies(t, o, f, diffs)
		})
	}
}

// A directory of the host is replaced by a symlink during the comparison.
func TestPromise3HostChangesMeanwhile(t *testing.T) {
	o := overlaytest.New(t, overlaytest.PrepareHost(t))
	gatetest.Write(t, o.Top+"/outside/b.txt", "outside\n")
	gatetest.Must(t, os.Symlink("../outside", o.Host+"/swap"))
	gatetest.Write(t, o.Box+"/dir/b.txt", "new\n")
	dst, _ := o.Freeze(overlay.FreezeLimits{})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, o.Host+"/dir", unix.AT_FDCWD, o.Host+"/swap", unix.RENAME_EXCHANGE)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	seen := map[string]bool{}
	for range 100 {
		diffs, _ := o.CompareWith(dst, compare.Options{Patch: true})
		for _, d := range diffs {
			for _, s := range d.Steps {
				if s.Before.Hash != gate.HashText([]byte("b\n")) || strings.Contains(d.Change.Patch, "outside") {
					t.Fatalf("looked outside: %+v", d)
				}
			}
		}
		seen[overlaytest.Summary(diffs)] = true
	}
	t.Logf("%d different comparisons", len(seen))
}
