package apply_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/apply"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/gate/overlaytest"
)

// TestLayerIsApply checks that a layer over the host's directory looks like the result of an apply.
func TestLayerIsApply(t *testing.T) {
	for name, script := range map[string]string{
		"edit":        "echo other > a.txt; echo new > dir/new; chmod 711 dir; mkdir -p x/y/z; echo z > x/y/z/z",
		"remove":      "rm -r dir link; rm a.txt",
		"types":       "rm -r dir a.txt; echo file > dir; mkdir a.txt; echo in > a.txt/in; rm link; mkdir link; echo x > link/x",
		"make again":  "rm -r dir; mkdir dir; echo new > dir/new",
		"links":       "ln -sfn dir link; ln -s ../.. dir/up; rm a.txt; ln -s nowhere a.txt",
		"rename":      "mv a.txt dir/z.txt; mkdir n; cp -r dir n/dir; rm -r dir; mv n/dir dir; rmdir n",
		"nothing":     "true",
		"permissions": "chmod 600 a.txt; mkdir -m 500 ro; chmod 555 dir",
	} {
		t.Run(name, func(t *testing.T) {
			o := overlaytest.New(t, overlaytest.PrepareHost(t))
			cmd := exec.Command("sh", "-e", "-c", script)
			cmd.Dir = o.Box
			out, err := cmd.CombinedOutput()
			gatetest.Must(t, err)
			if len(out) > 0 {
				t.Fatalf("%s", out)
			}
			dst, _ := o.Freeze(overlay.FreezeLimits{})
			diffs, _ := o.CompareWith(dst, compare.Options{})
			plan := &gate.Plan{}
			for _, d := range diffs {
				if d.Change.Verdict == "" {
					plan.Steps = append(plan.Steps, d.Steps...)
				}
			}
			frozen, err := overlay.OpenContents(dst)
			gatetest.Must(t, err)
			defer frozen.Close()
			read := frozen.Open
			for _, d := range []string{"upper2", "work2", "box2", "saved"} {
				gatetest.Must(t, os.Mkdir(filepath.Join(o.Top, d), 0o755))
			}
			layer := o.Dir("upper2")
			gatetest.Must(t, apply.Layer(t.Context(), plan, o.Manifest, layer, read))
			options := fmt.Sprintf("lowerdir=%s:%s,upperdir=%s,workdir=%s,redirect_dir=off,metacopy=off,index=off", o.Top+"/mask", o.Host, o.Top+"/upper2", o.Top+"/work2")
			gatetest.Must(t, unix.Mount("caisson-test", o.Top+"/box2", "overlay", 0, options))
			shown := gatetest.TreeText(t, o.Top+"/box2")
			gatetest.Must(t, unix.Unmount(o.Top+"/box2", 0))
			_, err = apply.Apply(t.Context(), o.Dir("host"), o.Dir("saved"), plan, read)
			gatetest.Must(t, err)
			// Hidden files are not visible.
			var want []string
			for line := range strings.Lines(gatetest.TreeText(t, o.Host)) {
				if !hides(t, line) {
					want = append(want, line)
				}
			}
			if shown != strings.Join(want, "") {
				t.Errorf("the layer shows\n%s\nthe apply makes\n%s", shown, strings.Join(want, ""))
			}
		})
	}
}

// hides reports whether a line of gatetest.TreeText is about something hidden.
func hides(t *testing.T, line string) bool {
	t.Helper()
	mask, err := baseline.NewMask(baseline.DefaultHidden(), nil)
	gatetest.Must(t, err)
	path, _, _ := strings.Cut(strings.TrimPrefix(line, "/"), " ")
	return mask.Hides(path)
}

// TestLayerRefuses checks that plans that do not fit the host, and contents that do not match their hash, are refused.
func TestLayerRefuses(t *testing.T) {
	text := []byte("text\n")
	file := gate.Node{Type: gate.NodeFile, Mode: 0o644, Hash: gate.HashText(text)}
	for name, c := range map[string]struct {
		step gate.Step
		read string
		kind caisson.Kind
	}{
		"no directory":        {gate.Step{Path: "no/such/f", After: file}, "text\n", caisson.Conflict},
		"a file above":        {gate.Step{Path: "a.txt/f", After: file}, "text\n", caisson.Conflict},
		"a link above":        {gate.Step{Path: "link/f", After: file}, "text\n", caisson.Conflict},
		"another content":     {gate.Step{Path: "f", After: file}, "other\n", caisson.Internal},
		"outside":             {gate.Step{Path: "../f", After: file}, "text\n", caisson.Invalid},
		"a device":            {gate.Step{Path: "f", After: gate.Node{Type: "device"}}, "", caisson.Invalid},
		"set user id":         {gate.Step{Path: "f", After: gate.Node{Type: gate.NodeFile, Mode: 0o4755, Hash: file.Hash}}, "text\n", caisson.Invalid},
		"a hidden directory":  {gate.Step{Path: ".ssh/f", After: file}, "text\n", caisson.Conflict},
		"below a new symlink": {gate.Step{Path: "out/f", After: file}, "text\n", caisson.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			o := overlaytest.New(t, func(host string) {
				gatetest.Write(t, host+"/a.txt", "a\n")
				gatetest.Write(t, host+"/.ssh/id", "secret\n")
				gatetest.Must(t, os.Symlink("/", host+"/link"))
			})
			gatetest.Must(t, os.Mkdir(o.Top+"/upper2", 0o755))
			plan := &gate.Plan{Steps: []gate.Step{c.step}}
			if strings.HasPrefix(c.step.Path, "out/") {
				plan.Steps = append(plan.Steps, gate.Step{Path: "out", After: gate.Node{Type: gate.NodeLink, Link: []byte("/tmp")}})
			}
			err := apply.Layer(t.Context(), plan, o.Manifest, o.Dir("upper2"), func(string) (io.ReadCloser, error) {
				return io.NopCloser(bytes.NewReader([]byte(c.read))), nil
			})
			if caisson.KindOf(err) != c.kind || err == nil {
				t.Errorf("%v, want %s", err, c.kind)
			}
		})
	}
}
