package coder

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// bench is a workspace with tools.
type bench struct {
	t   testing.TB
	dir string
	box *toolbox
}

func newBench(t testing.TB) *bench {
	t.Helper()
	dir := t.TempDir()
	box, err := newToolbox(&config{workspace: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(box.shell.close)
	return &bench{t, dir, box}
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) file(name, data string) {
	b.t.Helper()
	if err := os.MkdirAll(filepath.Dir(b.path(name)), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(b.path(name), []byte(data), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// call calls a tool and checks what holds for every result. If the tool blocks, the test fails.
func (b *bench) call(name string, args any) result {
	b.t.Helper()
	return b.callUntil(b.t.Context(), name, args)
}

func (b *bench) callUntil(ctx context.Context, name string, args any) result {
	b.t.Helper()
	data, err := json.Marshal(args)
	if err != nil {
		b.t.Fatal(err)
	}
	done := make(chan result, 1)
	go func() { done <- b.box.call(ctx, function{Name: name, Arguments: string(data)}) }()
	select {
	case r := <-done:
		if len(r.text) > maxResult || !isPlain(r.text) {
			b.t.Errorf("%s: %d bytes, clean: %v", name, len(r.text), isPlain(r.text))
		}
		return r
	case <-time.After(2 * time.Minute):
		b.t.Fatalf("%s %s does not return", name, data)
	}
	return result{}
}

type in map[string]any

// want checks whether a result is a failure and contains these parts.
func (b *bench) want(r result, failed bool, parts ...string) {
	b.t.Helper()
	if r.failed != failed {
		b.t.Errorf("failed: %v: %.500s", r.failed, r.text)
	}
	for _, p := range parts {
		if !strings.Contains(r.text, p) {
			b.t.Errorf("no %q in %.500q", p, r.text)
		}
	}
}

func (b *bench) has(name, want string) {
	b.t.Helper()
	got, err := os.ReadFile(b.path(name))
	if err != nil || string(got) != want {
		b.t.Errorf("%s has %.200q, %v; want %.200q", name, got, err, want)
	}
}

func (b *bench) fifo(name string) {
	b.t.Helper()
	if err := syscall.Mkfifo(b.path(name), 0o666); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) link(to, name string) {
	b.t.Helper()
	if err := os.Symlink(to, b.path(name)); err != nil {
		b.t.Fatal(err)
	}
}

func TestRead(t *testing.T) {
	b := newBench(t)
	b.file("a.txt", "one\ntwo\r\nthree")
	b.file("empty", "")
	b.file("binary", "ab\x00cd")
	b.file("long", strings.Repeat("x", 1<<20)+"\nsecond\n")
	b.file("many", strings.Repeat("0123456789\n", 50_000))
	for _, row := range []struct {
		args   in
		failed bool
		want   string
	}{
		{in{"path": "a.txt"}, false, "     1\tone\n     2\ttwo\n     3\tthree\n"},
		{in{"path": b.path("a.txt"), "offset": 2, "limit": 1}, false, "     2\ttwo\n[there is more; go on with offset 3]\n"},
		{in{"path": "a.txt", "offset": "3"}, false, "     3\tthree\n"},
		{in{"path": "a.txt", "offset": 9}, true, "there are only 3 lines"},
		{in{"path": "a.txt", "offset": -5, "limit": 1e12}, false, "     1\tone\n"},
		{in{"path": "empty"}, false, "[the file is empty]"},
		{in{"path": "binary"}, true, "is binary, with 5 bytes"},
		{in{"path": "long"}, false, "x [1046576 bytes of this line left out]\n     2\tsecond\n"},
		{in{"path": "many"}, false, "     1\t0123456789\n"},
		{in{"path": "many"}, false, "[there is more; go on with offset 1001]"},
		{in{"path": "many", "limit": 40_000}, false, "[there is more; go on with offset 18"},
		{in{"path": "many", "offset": 50_000}, false, " 50000\t0123456789\n"},
		{in{"path": "none"}, true, "no such file"},
		{in{"path": "."}, true, "is a directory"},
		{in{"path": ""}, true, "path is empty"},
		{in{"path": "a\x00b"}, true, "zero byte"},
		{in{"path": 7}, true, "not as they should be"},
		{in{"path": "a.txt", "offset": "x"}, true, "is no number"},
	} {
		b.want(b.call("read", row.args), row.failed, row.want)
	}
}

// TestWhatIsNoFile: no tool blocks or fills the memory when its path is not a regular file.
func TestWhatIsNoFile(t *testing.T) {
	b := newBench(t)
	b.fifo("fifo")
	b.link("fifo", "to-fifo")
	b.link("loop", "loop")
	b.link("..", "up")
	b.file("sub/file", "needle\n")
	b.link("..", "sub/up")
	huge, err := os.Create(b.path("huge"))
	if err != nil {
		t.Fatal(err)
	}
	if err := huge.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	huge.Close()
	for _, path := range []string{"fifo", "to-fifo", "loop", "/dev/zero", "/dev/stdin", "/dev/tty", "/proc/self/fd", "huge"} {
		for _, tool := range []string{"read", "edit", "list"} {
			b.want(b.call(tool, in{"path": path, "old_string": "a", "new_string": "b"}), path != "/proc/self/fd" || tool != "list")
		}
		if path != "huge" {
			b.want(b.call("write", in{"path": path, "content": "x"}), true)
		}
		r := b.call("search", in{"pattern": "needle", "path": path})
		if strings.Contains(r.text, "needle") {
			t.Errorf("found in %s: %s", path, r.text)
		}
		if notes := readNotes(b.path(path)); len(notes) > maxNotes+100 || path != "huge" && notes != "" {
			t.Errorf("notes in %s: %q", path, notes)
		}
	}
	b.want(b.call("search", in{"pattern": "needle"}), false, "sub/file:1: needle", "[1 files of more than 8 MiB were not searched]")
	b.want(b.call("list", in{"depth": 1e9}), false, "fifo (a FIFO)", "loop -> loop", "sub/up -> ..", "sub/file (7)", "huge (1099511627776)")
}

func TestWrite(t *testing.T) {
	b := newBench(t)
	b.want(b.call("write", in{"path": "new/dir/file", "content": "a\nb\n"}), false, "Created", "2 lines, 4 bytes")
	b.has("new/dir/file", "a\nb\n")
	if err := os.Chmod(b.path("new/dir/file"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.link("new/dir/file", "link")
	b.want(b.call("write", in{"path": "link", "content": "c"}), false, "Replaced")
	b.has("new/dir/file", "c")
	if info, err := os.Stat(b.path("new/dir/file")); err != nil || info.Mode() != 0o755 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	b.want(b.call("write", in{"path": "link"}), true, "content is missing")
	b.want(b.call("write", in{"path": "new", "content": ""}), true, "is a directory")
	b.want(b.call("write", in{"path": "link/x", "content": ""}), true, "not a directory")
	b.has("new/dir/file", "c")
}

func TestEdit(t *testing.T) {
	b := newBench(t)
	const text = "func a() {\n\treturn 1\n}\n\nfunc b() {\n\treturn 1\n}\n"
	for _, row := range []struct {
		text, old, with string
		all, failed     bool
		want            string
		result          string
	}{
		{text, "func a", "func c", false, false, "at line 1.", strings.Replace(text, "a()", "c()", 1)},
		{text, "func b() {\n\treturn 1\n", "func b() {\n\treturn 2\n", false, false, "at line 6.", "func a() {\n\treturn 1\n}\n\nfunc b() {\n\treturn 2\n}\n"},
		{text, "return 1", "return 2", true, false, "2 places", strings.ReplaceAll(text, "1", "2")},
		{text, "return 1", "return 2", false, true, "2 times, at lines 2, 6;", text},
		{text, "    return 1", "x", false, true, "It differs in white space only from lines 2 to 2, which are exactly:\n\treturn 1", text},
		{text, "func b() {\n\treturn 7\n}", "x", false, true, "The nearest is lines 5 to 7, which are exactly:\nfunc b() {\n\treturn 1\n}", text},
		{text, "completely different", "x", false, true, "Nothing in the file is like it", text},
		{text, "", "x", false, true, "is empty; use write", text},
		{text, "a", "a", false, true, "are the same", text},
		{text, "\treturn 1\n}\n\nfunc b() {\n", "", false, false, "Edited", "func a() {\n\treturn 1\n}\n"},
		{"a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\nz\n", false, false, "Edited", "x\r\ny\r\nz\r\nc\r\n"},
		{"a\xff\nb\n", "b", "c", false, false, "at line 2", "a\xff\nc\n"},
		{"a\x00b", "b", "c", false, true, "binary", "a\x00b"},
	} {
		b.file("f", row.text)
		r := b.call("edit", in{"path": "f", "old_string": row.old, "new_string": row.with, "replace_all": row.all})
		b.want(r, row.failed, row.want)
		b.has("f", row.result)
	}
	b.want(b.call("edit", in{"path": "f", "old_string": "a"}), true, "new_string is missing")
	b.want(b.call("edit", in{"path": "none", "old_string": "a", "new_string": "b"}), true, "no such file")
}

// TestAFullDiskTakesNoFileAlong: a failed write leaves the old content.
func TestAFullDiskTakesNoFileAlong(t *testing.T) {
	// The limit on file sizes applies to the whole process, whose log of the test may be larger, so the test runs in a process of its own.
	const child = "CAISSON_TEST_FULL_DISK"
	if os.Getenv(child) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestAFullDiskTakesNoFileAlong$")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	b := newBench(t)
	const limit = 64 << 10
	old := strings.Repeat("x", limit-100) + "needle"
	b.file("f", old)
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: limit, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	r := b.call("edit", in{"path": "f", "old_string": "needle", "new_string": strings.Repeat("y", 10_000)})
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	b.want(r, true, "is unchanged", "file too large")
	b.has("f", old)
}

func TestListAndSearchObeyGitignore(t *testing.T) {
	b := newBench(t)
	for name, data := range map[string]string{
		".gitignore": "# comment\n*.log\n!keep.log\n/build/\ndocs/**/draft.md\ntmp/\n[ab].txt\n\\#odd\n", "a.log": "needle", "keep.log": "needle",
		"build/x": "needle", "src/build/x": "needle", "docs/1/2/draft.md": "needle", "docs/final.md": "needle", "tmp/x": "needle",
		"src/tmp": "needle", "a.txt": "needle", "c.txt": "needle", "#odd": "needle", ".git/config": "needle", "node_modules/m/x": "needle",
		"sub/.gitignore": "secret\n!*.log\n", "sub/secret": "needle", "sub/b.log": "needle", "secret": "needle",
	} {
		b.file(name, data)
	}
	r := b.call("list", in{"depth": 9})
	want := ".gitignore (71)\nc.txt (6)\ndocs/\ndocs/1/\ndocs/1/2/\ndocs/final.md (6)\nkeep.log (6)\nsecret (6)\nsrc/\nsrc/build/\nsrc/build/x (6)\nsrc/tmp (6)\nsub/\nsub/.gitignore (14)\nsub/b.log (6)\n"
	if r.text != want {
		t.Errorf("list:\n%s\nwant\n%s", r.text, want)
	}
	r = b.call("search", in{"pattern": "NEEDLE", "ignore_case": true})
	if want := "c.txt:1: needle\ndocs/final.md:1: needle\nkeep.log:1: needle\nsecret:1: needle\nsrc/build/x:1: needle\nsrc/tmp:1: needle\nsub/b.log:1: needle\n"; r.text != want {
		t.Errorf("search:\n%s\nwant\n%s", r.text, want)
	}
	r = b.call("search", in{"pattern": "n.+e$", "path": "sub", "glob": "*.log"})
	if want := "sub/b.log:1: needle\n"; r.text != want {
		t.Errorf("search:\n%s", r.text)
	}
	b.want(b.call("list", in{}), false, "docs/1/\n")
	if r := b.call("list", in{}); strings.Contains(r.text, "docs/1/2") {
		t.Errorf("too deep:\n%s", r.text)
	}
	b.want(b.call("search", in{"pattern": "("}), true, "not valid")
	b.want(b.call("search", in{"pattern": ""}), true, "pattern")
	b.want(b.call("search", in{"pattern": "x", "path": "none"}), true, "no such file")
	b.want(b.call("list", in{"path": "c.txt"}), true, "no directory")
	b.want(b.call("search", in{"pattern": "absent"}), false, "[nothing found]")
}

func TestListAndSearchAreBounded(t *testing.T) {
	b := newBench(t)
	for i := range 700 {
		b.file(fmt.Sprintf("d%d/%s-%d", i%7, strings.Repeat("n", 50), i), strings.Repeat("needle needle needle\n", 100))
	}
	deep := "deep"
	for range 100 {
		deep += "/d"
	}
	b.file(deep+"/bottom", "needle")
	b.want(b.call("list", in{"depth": 1000}), false, "[there is more")
	b.want(b.call("search", in{"pattern": "needle"}), false, "[there are more in this file]", "[not everything was searched")
	// A name may contain any bytes except zero and slash.
	b.file("odd/evil\n\x1b[31m\xff: name", "needle\n")
	b.want(b.call("list", in{"path": "odd"}), false, "evil\uFFFD\uFFFD: name")
	b.want(b.call("search", in{"path": "odd", "pattern": "needle"}), false, "needle")
}

func TestUnreadable(t *testing.T) {
	if os.Getuid() == 0 {
		// Root can read every file, so use a file of /proc for which reading fails.
		b := newBench(t)
		b.want(b.call("read", in{"path": "/proc/self/mem"}), true, "/proc/self/mem: ")
		return
	}
	b := newBench(t)
	b.file("f", "x")
	b.file("d/f", "x")
	for _, name := range []string{"f", "d"} {
		if err := os.Chmod(b.path(name), 0); err != nil {
			t.Fatal(err)
		}
	}
	defer os.Chmod(b.path("d"), 0o755)
	b.want(b.call("read", in{"path": "f"}), true, "permission denied")
	b.want(b.call("list", in{"path": "d"}), true, "permission denied")
	b.want(b.call("search", in{"pattern": "x"}), false, "[nothing found]")
}
