package gate

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
)

// TestLayerIsApply: above the host's directory a layer shows what an apply makes of it.
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
			o := newOverlay(t, prepareHost(t))
			cmd := exec.Command("sh", "-e", "-c", script)
			cmd.Dir = o.box
			out, err := cmd.CombinedOutput()
			check(t, err)
			if len(out) > 0 {
				t.Fatalf("%s", out)
			}
			dst, _ := o.freeze(FreezeLimits{})
			diffs, _ := o.compareWith(dst, CompareOptions{})
			plan := &Plan{}
			for _, d := range diffs {
				if d.Change.Verdict == "" {
					plan.Steps = append(plan.Steps, d.Steps...)
				}
			}
			frozen, err := openFrozenContents(dst)
			check(t, err)
			defer frozen.close()
			read := frozen.open
			for _, d := range []string{"upper2", "work2", "box2", "saved"} {
				check(t, os.Mkdir(filepath.Join(o.top, d), 0o755))
			}
			layer := o.dir("upper2")
			check(t, Layer(t.Context(), plan, o.manifest, layer, read))
			options := fmt.Sprintf("lowerdir=%s:%s,upperdir=%s,workdir=%s,redirect_dir=off,metacopy=off,index=off", o.top+"/mask", o.host, o.top+"/upper2", o.top+"/work2")
			check(t, unix.Mount("caisson-test", o.top+"/box2", "overlay", 0, options))
			shown := treeText(t, o.top+"/box2")
			check(t, unix.Unmount(o.top+"/box2", 0))
			_, err = Apply(t.Context(), o.dir("host"), o.dir("saved"), plan, read)
			check(t, err)
			// What is hidden is not shown.
			var want []string
			for line := range strings.Lines(treeText(t, o.host)) {
				if !o.hides(t, line) {
					want = append(want, line)
				}
			}
			if shown != strings.Join(want, "") {
				t.Errorf("the layer shows\n%s\nthe apply makes\n%s", shown, strings.Join(want, ""))
			}
		})
	}
}

// hides reports whether a line of treeText is about something hidden.
func (o *overlay) hides(t *testing.T, line string) bool {
	t.Helper()
	mask, err := NewMask(DefaultHidden(), nil)
	check(t, err)
	path, _, _ := strings.Cut(strings.TrimPrefix(line, "/"), " ")
	return mask.Hides(path)
}

// TestLayerRefuses: what does not fit the host, or is not what it is said to be, makes no layer.
func TestLayerRefuses(t *testing.T) {
	text := []byte("text\n")
	file := Node{Type: nodeFile, Mode: 0o644, Hash: HashText(text)}
	for name, c := range map[string]struct {
		step Step
		read string
		kind caisson.Kind
	}{
		"no directory":        {Step{Path: "no/such/f", After: file}, "text\n", caisson.Conflict},
		"a file above":        {Step{Path: "a.txt/f", After: file}, "text\n", caisson.Conflict},
		"a link above":        {Step{Path: "link/f", After: file}, "text\n", caisson.Conflict},
		"another content":     {Step{Path: "f", After: file}, "other\n", caisson.Internal},
		"outside":             {Step{Path: "../f", After: file}, "text\n", caisson.Invalid},
		"a device":            {Step{Path: "f", After: Node{Type: "device"}}, "", caisson.Invalid},
		"set user id":         {Step{Path: "f", After: Node{Type: nodeFile, Mode: 0o4755, Hash: file.Hash}}, "text\n", caisson.Invalid},
		"a hidden directory":  {Step{Path: ".ssh/f", After: file}, "text\n", caisson.Conflict},
		"below a new symlink": {Step{Path: "out/f", After: file}, "text\n", caisson.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOverlay(t, func(host string) {
				write(t, host+"/a.txt", "a\n")
				write(t, host+"/.ssh/id", "secret\n")
				check(t, os.Symlink("/", host+"/link"))
			})
			check(t, os.Mkdir(o.top+"/upper2", 0o755))
			plan := &Plan{Steps: []Step{c.step}}
			if strings.HasPrefix(c.step.Path, "out/") {
				plan.Steps = append(plan.Steps, Step{Path: "out", After: Node{Type: nodeLink, Link: []byte("/tmp")}})
			}
			err := Layer(t.Context(), plan, o.manifest, o.dir("upper2"), func(string) (io.ReadCloser, error) {
				return io.NopCloser(bytes.NewReader([]byte(c.read))), nil
			})
			if caisson.KindOf(err) != c.kind || err == nil {
				t.Errorf("%v, want %s", err, c.kind)
			}
		})
	}
}
