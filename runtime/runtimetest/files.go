package runtimetest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

var fileTests = []test{
	{"SaveFiles", testSaveFiles},
	{"SandboxesShareNoFiles", testShareNothing},
	{"Mounts", testMounts},
}

// testSaveFiles makes all kinds of changes to files, saves the files, and checks that a new sandbox with the saved files has the
// same changes.
func testSaveFiles(t *testing.T, s *suite) {
	c := s.checkpointer(t)
	b := s.create(t)
	b.write("/made", "content", 0o751)
	b.write("/lower/keep", "changed", 0o600)
	for _, name := range []string{"/lower/gone", "/lower/tree"} {
		must(t, "remove "+name, b.files().RemoveFile(b.ctx(), name, true))
	}
	must(t, "make directory", b.files().MakeDir(b.ctx(), "/new/deep", true))
	must(t, "make symlink", b.files().WriteTree(b.ctx(), "/new", bytes.NewReader(symlink(t, "link", "../lower/keep"))))
	r := b.finish(b.exec(caisson.RuntimeExec{Command: []string{"fill", "/shared/own", "5000"}, User: "agent"}))
	if !r.status.Success() {
		t.Fatalf("fill: %+v", r)
	}
	looks := map[string]string{}
	for _, name := range []string{"/made", "/lower", "/lower/keep", "/lower/text", "/new/deep", "/new/link", "/shared", "/shared/own"} {
		looks[name] = b.output("stat", name)
	}

	saved := tempFile(t)
	must(t, "SaveFiles", c.SaveFiles(b.ctx(), b.id, saved))
	must(t, "Destroy", s.Runtime.Destroy(b.ctx(), b.id))
	again := s.newBox(t)
	again.spec.Files = saved.Name()
	again.create()
	for name, want := range looks {
		again.wantOutput(want, "stat", name)
	}
	for name, want := range map[string]string{"/made": "content", "/lower/keep": "changed", "/lower/text": "no program"} {
		again.wantContent(name, want)
	}
	for _, name := range []string{"/lower/gone", "/lower/tree", "/lower/tree/leaf"} {
		again.wantAbsent(name)
	}
	// The changes that a sandbox got from saved files count as its own changes, so SaveFiles saves them again.
	saved = tempFile(t)
	must(t, "SaveFiles", c.SaveFiles(again.ctx(), again.id, saved))
	third := s.newBox(t)
	third.spec.Files = saved.Name()
	third.create()
	third.wantContent("/made", "content")
	third.wantAbsent("/lower/gone")
}

// symlink returns a tar archive that contains only a symlink.
func symlink(t *testing.T, name, target string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	must(t, "write an archive", w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}))
	must(t, "write an archive", w.Close())
	return out.Bytes()
}

// testShareNothing checks that changes of files in one sandbox are not visible in another one or on the host.
func testShareNothing(t *testing.T, s *suite) {
	one, two := s.create(t), s.create(t)
	one.write("/lower/keep", "changed", 0o644)
	one.write("/made", "content", 0o644)
	two.wantContent("/lower/keep", "keep")
	two.wantAbsent("/made")
	if got, err := os.ReadFile(filepath.Join(s.layer, "lower", "keep")); err != nil || string(got) != "keep" {
		t.Errorf("the layer itself holds %q now, %v", got, err)
	}
}

// testMounts mounts a host directory read-only and another one writable.
func testMounts(t *testing.T, s *suite) {
	b := s.newBox(t)
	read, write := t.TempDir(), t.TempDir()
	must(t, "write a file", os.WriteFile(filepath.Join(read, "file"), []byte("of the host"), 0o644))
	for dir, mode := range map[string]os.FileMode{read: 0o755, write: 0o777} {
		must(t, "chmod", os.Chmod(dir, mode))
	}
	if os.Geteuid() == 0 { // a directory that the host's root owns cannot be mounted writable
		must(t, "chown", os.Chown(write, 1000, 1000))
	}
	b.spec.Mounts = []caisson.RuntimeMount{
		{Source: openPath(t, read), Target: "/mnt/read"},
		{Source: openPath(t, write), Target: "/mnt/write", Writable: true},
	}
	b.create()
	if got := b.output("stat", "/mnt/read/file"); !strings.HasPrefix(got, "file 0644 ") || !strings.HasSuffix(got, fmt.Sprint(" ", len("of the host"))) {
		t.Errorf("a file of the host is %q inside", got)
	}
	if r := b.run("fill", "/mnt/read/new", "1"); r.status.Success() {
		t.Errorf("a directory that may only be read was written to: %+v", r)
	}
	if r := b.run("fill", "/mnt/write/new", "7"); !r.status.Success() {
		t.Errorf("a directory that may be written to: %+v", r)
	}
	if info, err := os.Stat(filepath.Join(write, "new")); err != nil || info.Size() != 7 {
		t.Errorf("what was written inside is on the host %v, %v", info, err)
	}
	if got := entries(t, read); len(got) != 1 {
		t.Errorf("the directory that may only be read has %q", got)
	}
}

// openPath opens a directory with O_PATH, as [caisson.RuntimeMount] requires. It is closed at the end of the test.
func openPath(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.OpenFile(name, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, "open", err)
	t.Cleanup(func() { f.Close() })
	return f
}
