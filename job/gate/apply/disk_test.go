package apply

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/job/gate"
)

// mounted mounts a file system of size bytes for the test and returns its path.
func mounted(t testing.TB, size string) string {
	t.Helper()
	testneed.Root(t)
	dir := t.TempDir()
	if err := unix.Mount("caisson-test", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size="+size); err != nil {
		testneed.Skip(t, "mount", err.Error())
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// siteOn returns a site whose two directories are on separate file systems.
func siteOn(t testing.TB, hostSize, savedSize string, s shape) site {
	t.Helper()
	host, saved := mounted(t, hostSize), mounted(t, savedSize)
	lay(t, host, s)
	return site{dir: host, host: dirFile(t, host), saved: dirFile(t, saved)}
}

func TestApplyOnTwoFileSystems(t *testing.T) {
	op := mixed
	s := siteOn(t, "1m", "1m", op.before)
	plan, c := planOf(t, op.before, op.after)
	out, err := Apply(t.Context(), s.host, s.saved, plan, c.read)
	wantState(t, "apply", out, err, Applied)
	s.want(t, "after apply", op.after)
	out, err = Undo(t.Context(), s.host, s.saved)
	wantState(t, "undo", out, err, Undone)
	s.want(t, "after undo", op.before)
}

func TestDiskFull(t *testing.T) {
	before, after := shape{"d": "d 755"}, shape{"d": "d 755"}
	for i := range 8 {
		name := fmt.Sprintf("d/%d", i)
		before[name] = "f 644 " + strings.Repeat(fmt.Sprint(i), 16<<10)
		after[name] = "f 644 " + strings.Repeat("x", 20<<10+i)
	}
	plan, c := planOf(t, before, after)
	for name, sizes := range map[string][2]string{
		"of the host":  {"256k", "1m"},
		"of the saved": {"1m", "100k"},
		"of a journal": {"1m", "4k"},
	} {
		t.Run(name, func(t *testing.T) {
			s := siteOn(t, sizes[0], sizes[1], before)
			out, err := Apply(t.Context(), s.host, s.saved, plan, c.read)
			if caisson.KindOf(err) != caisson.Exhausted || out.State != RolledBack {
				t.Errorf("%+v, %v", out, err)
			}
			s.want(t, "afterwards", before)
			if out, err := Recover(t.Context(), s.host, s.saved); err != nil || out.State == Applied {
				t.Errorf("recover: %+v, %v", out, err)
			}
		})
	}
}

// TestDiskFullForTheJournal fills the disk with the journal from some step on.
func TestDiskFullForTheJournal(t *testing.T) {
	t.Parallel()
	op := mixed
	plan, c := planOf(t, op.before, op.after)
	for n := 0; ; n++ {
		s := memorySite(t, op.before)
		saved := mounted(t, "128k")
		s.saved = dirFile(t, saved)
		points, fill := 0, filepath.Join(saved, "fill")
		out, err := apply(t.Context(), s.host, s.saved, plan, c.read, func(string) {
			if points++; points != n*4+1 {
				return
			}
			if err := os.WriteFile(fill, bytes.Repeat([]byte{1}, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
				t.Error(err)
			}
		})
		what := fmt.Sprintf("full at %d, %+v, %v,", n*4, out, err)
		if points > n*4 {
			if err := os.Remove(fill); err != nil {
				t.Fatal(err)
			}
		}
		rec, rerr := Recover(t.Context(), s.host, s.saved)
		if rerr != nil || len(rec.LeftInPlace) > 0 || err == nil && rec.State != Applied {
			t.Errorf("%s recover: %+v, %v", what, rec, rerr)
		}
		want := op.before
		if rec.State == Applied {
			want = op.after
		}
		s.want(t, what, want)
		if points <= n*4 || t.Failed() {
			return
		}
	}
}

func TestReadOnlyHost(t *testing.T) {
	before, after := shape{"a": "f 644 1"}, shape{"a": "f 644 2"}
	s := siteOn(t, "64k", "64k", before)
	if err := unix.Mount("", s.dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	plan, c := planOf(t, before, after)
	out, err := Apply(t.Context(), s.host, s.saved, plan, c.read)
	if caisson.KindOf(err) != caisson.Denied || out.State != RolledBack {
		t.Errorf("%+v, %v", out, err)
	}
	s.want(t, "afterwards", before)
}

func TestPromise3NothingOnOtherMounts(t *testing.T) {
	before, after := shape{"a": "f 644 1"}, shape{"a": "f 644 2", "m/x": "f 644 x"}
	s := siteOn(t, "64k", "64k", before)
	inner := filepath.Join(s.dir, "m")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("caisson-test", inner, "tmpfs", 0, "size=64k,mode=755"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(inner, unix.MNT_DETACH)
	plan, c := planOf(t, before, after)
	_, err := Apply(t.Context(), s.host, s.saved, plan, c.read)
	wantMoved(t, err, "m/x")
	s.want(t, "afterwards", shape{"a": "f 644 1", "m": "d 755"})
}

// TestPromise3OnlyPermissions checks that set-id bits, attributes and access control lists are not applied to the host's files.
func TestPromise3OnlyPermissions(t *testing.T) {
	testneed.Root(t)
	before := shape{"a": "f 4755 1", "b": "f 2755 1", "s": "d 2755", "s/x": "f 644 x"}
	after := shape{"a": "f 755 2", "b": "f 755 1", "n": "d 755", "n/y": "f 644 y", "s": "d 2755", "s/x": "f 644 xx", "s/z": "f 600 z"}
	s := memorySite(t, before)
	// A default access control list gives uid 1234 all rights to new files in the directory.
	acl := []byte{2, 0, 0, 0}
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 7, ^uint32(0)}, {2, 7, 1234}, {4, 5, ^uint32(0)}, {0x10, 7, ^uint32(0)}, {0x20, 5, ^uint32(0)}} {
		acl = binary.LittleEndian.AppendUint16(acl, e.tag)
		acl = binary.LittleEndian.AppendUint16(acl, e.perm)
		acl = binary.LittleEndian.AppendUint32(acl, e.id)
	}
	for _, dir := range []string{s.dir, s.dir + "/s"} {
		if err := unix.Setxattr(dir, "system.posix_acl_default", acl, 0); err != nil {
			testneed.Skip(t, "acl", err.Error())
		}
	}
	plan, c := planOf(t, before, after)
	out, err := Apply(t.Context(), s.host, s.saved, plan, c.read)
	wantState(t, "apply", out, err, Applied)
	s.want(t, "after apply", after)
	for name := range after {
		for _, attr := range []string{"system.posix_acl_access", "system.posix_acl_default"} {
			if n, err := unix.Lgetxattr(filepath.Join(s.dir, name), attr, nil); err == nil && name != "s" {
				t.Errorf("%s has %d bytes of %s", name, n, attr)
			}
		}
	}
	out, err = Undo(t.Context(), s.host, s.saved)
	wantState(t, "undo", out, err, Undone)
	back := maps.Clone(before)
	back["a"], back["b"] = "f 755 1", "f 755 1"
	s.want(t, "after undo", back)
}

func TestOneAtATime(t *testing.T) {
	before, after := shape{"a": "f 644 1"}, shape{"a": "f 644 2"}
	s := memorySite(t, before)
	plan, c := planOf(t, before, after)
	other := dirFile(t, t.TempDir())
	tried := false
	out, err := apply(t.Context(), s.host, s.saved, plan, c.read, func(string) {
		if tried {
			return
		}
		tried = true
		if _, err := Apply(t.Context(), s.host, other, plan, c.read); caisson.KindOf(err) != caisson.Conflict {
			t.Errorf("at the same time: %v", err)
		}
		if _, err := Recover(t.Context(), s.host, s.saved); caisson.KindOf(err) != caisson.Conflict {
			t.Errorf("recover at the same time: %v", err)
		}
	})
	wantState(t, "apply", out, err, Applied)
}

func TestThousandFiles(t *testing.T) {
	t.Parallel()
	before, after := shape{}, shape{}
	for i := range 1000 {
		dir := fmt.Sprintf("d%d", i%20)
		before[dir], after[dir] = "d 755", "d 755"
		name := fmt.Sprintf("%s/f%d", dir, i)
		before[name], after[name] = fmt.Sprintf("f 644 %d", i), fmt.Sprintf("f 644 new %d", i)
		switch i % 4 {
		case 0:
			delete(before, name)
		case 1:
			delete(after, name)
		}
	}
	s := memorySite(t, before)
	plan, c := planOf(t, before, after)
	out, err := Apply(t.Context(), s.host, s.saved, plan, c.read)
	wantState(t, "apply", out, err, Applied)
	s.want(t, "after apply", after)
	out, err = Undo(t.Context(), s.host, s.saved)
	wantState(t, "undo", out, err, Undone)
	s.want(t, "after undo", before)
}

func BenchmarkApply(b *testing.B) {
	before, after := shape{}, shape{}
	for i := range 1000 {
		name := fmt.Sprintf("f%d", i)
		before[name], after[name] = fmt.Sprintf("f 644 %d", i), fmt.Sprintf("f 644 new %d", i)
	}
	for b.Loop() {
		b.StopTimer()
		s := newSite(b, before)
		plan, c := planOf(b, before, after)
		b.StartTimer()
		if _, err := Apply(b.Context(), s.host, s.saved, plan, c.read); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzJournal(f *testing.F) {
	var text bytes.Buffer
	op := mixed
	plan, _ := planOf(f, op.before, op.after)
	appendRecord(&text, record{Version: 1, Stage: gate.StagePrefix + strings.Repeat("A", 26), Steps: len(plan.Steps)})
	for i := range plan.Steps {
		appendRecord(&text, record{Step: &plan.Steps[i]})
	}
	for _, p := range []phase{phasePlan, phaseSwitch, phaseRestored, phaseBack} {
		f.Add(text.Bytes())
		appendRecord(&text, record{Phase: p, LeftInPlace: []string{"x"}})
	}
	f.Add(text.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := parseJournal(bytes.NewReader(data))
		if err == nil && h.phase != phaseNone && (!validStage(h.stage) || (&gate.Plan{Steps: h.steps}).Validate() != nil) {
			t.Errorf("%+v", h)
		}
	})
}

// TestTornJournal checks that a truncated journal is read as the records before the truncation.
func TestTornJournal(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	op := mixed
	plan, _ := planOf(t, op.before, op.after)
	appendRecord(&text, record{Version: 1, Stage: gate.StagePrefix + strings.Repeat("A", 26), Steps: len(plan.Steps)})
	for i := range plan.Steps {
		appendRecord(&text, record{Step: &plan.Steps[i]})
	}
	for _, p := range []phase{phasePlan, phaseSwitch, phaseCommit, phaseDone} {
		text.WriteByte('\n')
		appendRecord(&text, record{Phase: p})
	}
	order := []phase{phaseNone, phasePlan, phaseSwitch, phaseCommit, phaseDone}
	at := 0
	for n := range text.Len() + 1 {
		h, err := parseJournal(bytes.NewReader(text.Bytes()[:n]))
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		for h.phase != order[at] {
			if at++; at == len(order) {
				t.Fatalf("%d bytes: %q", n, h.phase)
			}
		}
		if h.phase != phaseNone && len(h.steps) != len(plan.Steps) {
			t.Fatalf("%d bytes: %d steps", n, len(h.steps))
		}
	}
	if at != len(order)-1 {
		t.Errorf("ended with %q", order[at])
	}
}

func FuzzPlan(f *testing.F) {
	for _, op := range operations {
		plan, _ := planOf(f, op.before, op.after)
		text, err := plan.Input()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text.Bytes())
	}
	f.Add([]byte(`{"path":"a","after":{"type":"file","hash":"../x"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := gate.DecodePlan(bytes.NewReader(data))
		if err != nil {
			return
		}
		text, err := p.Input()
		if err != nil {
			t.Fatal(err)
		}
		again, err := gate.DecodePlan(text)
		if err != nil || fmt.Sprint(again.Steps) != fmt.Sprint(p.Steps) {
			t.Errorf("%v: %v is not %v", err, again, p)
		}
	})
}
