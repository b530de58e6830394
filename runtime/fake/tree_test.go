package fake

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// newTestTree returns a tree with the layers of spec.
func newTestTree(t *testing.T, spec *caisson.RuntimeSpec) *tree {
	t.Helper()
	tr, err := newTree(filepath.Join(t.TempDir(), "root"), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.close)
	return tr
}

// createFiles creates files in a new directory; a name that ends in a slash is a directory.
func createFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			continue
		}
		if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLayers(t *testing.T) {
	low := createFiles(t, map[string]string{"a": "low", "b": "low", "hidden/x": "low", "dir/x": "low"})
	top := createFiles(t, map[string]string{"a": "top", "dir/y": "top", "hidden/y": "top"})
	want := map[string]string{"a": "top", "b": "low", "dir/x": "low", "dir/y": "top", "hidden/y": "top", "hidden/x": "low"}
	if err := unix.Setxattr(filepath.Join(top, "hidden"), "user.overlay.opaque", []byte("y"), 0); err == nil {
		want["hidden/x"] = ""
	}
	if err := unix.Mknod(filepath.Join(top, "b"), syscall.S_IFCHR, 0); err == nil { // only root can
		want["b"] = ""
	}
	tr := newTestTree(t, &caisson.RuntimeSpec{Rootfs: caisson.Rootfs{Layers: []string{top, low}}})
	for name, content := range want {
		got, err := tr.readFile("/" + name)
		if string(got) != content || (content == "") != errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s holds %q, %v; want %q", name, got, err, content)
		}
	}
}

func TestBinds(t *testing.T) {
	host := createFiles(t, map[string]string{"usr/bin/tool": "tool", "one": "single"})
	tr := newTestTree(t, &caisson.RuntimeSpec{Rootfs: caisson.Rootfs{Binds: []caisson.Bind{
		{Source: filepath.Join(host, "usr"), Target: "/usr"}, {Source: filepath.Join(host, "one"), Target: "/etc/one"},
	}}})
	for name, want := range map[string]string{"/usr/bin/tool": "tool", "/etc/one": "single", "/usr/../usr/./bin/tool": "tool"} {
		if got, err := tr.readFile(name); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v", name, got, err)
		}
	}
	if _, err := tr.writeFile("/usr/new", nil, false, 0o644, owner{}); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write to a bind: %v", err)
	}
}

func TestOwnersFollowFiles(t *testing.T) {
	tr := newTestTree(t, &caisson.RuntimeSpec{})
	if _, err := tr.writeFile("/a", nil, false, 0o644, owner{5, 6}); err != nil {
		t.Fatal(err)
	}
	if err := tr.root.Rename("a", "b"); err != nil {
		t.Fatal(err)
	}
	if f, err := tr.lstat("/b"); err != nil || f.UID != 5 || f.GID != 6 {
		t.Errorf("renamed: %+v, %v", f, err)
	}
}

func TestUser(t *testing.T) {
	etc := createFiles(t, map[string]string{
		"etc/passwd": "root:x:0:0::/:\nlow:x:7:8::/:\nbad:x:many:0::/:\nshort:x\n\n", "etc/group": "team:x:9:low\nbad:x:many:\n",
	})
	tr := newTestTree(t, &caisson.RuntimeSpec{Rootfs: caisson.Rootfs{Layers: []string{etc}}})
	for spec, want := range map[string]owner{
		"": {}, "root": {}, "7": {7, 8}, "low": {7, 8}, "low:team": {7, 9}, "1:2": {1, 2}, "3:team": {3, 9}, "65535": {65535, 0},
	} {
		if got, err := tr.user(spec); err != nil || got != want {
			t.Errorf("user %q is %v, %v; want %v", spec, got, err, want)
		}
	}
	for _, spec := range []string{"nobody", "bad", "short", "low:nobody", "low:bad", "low:", ":", ":team", "-1", "65536", "1:-1", "1:2:3"} {
		if got, err := tr.user(spec); caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != "user" {
			t.Errorf("user %q is %v, %v; want it invalid", spec, got, err)
		}
	}
}

// FuzzLoad loads arbitrary archives and checks that no file outside of the tree changes.
func FuzzLoad(f *testing.F) {
	tr, err := newTree(filepath.Join(f.TempDir(), "root"), &caisson.RuntimeSpec{})
	if err != nil {
		f.Fatal(err)
	}
	defer tr.close()
	if _, err := tr.writeFile("/made", []byte("content"), false, 0o644, owner{5, 6}); err != nil {
		f.Fatal(err)
	}
	if err := tr.root.Symlink("../..", "up"); err != nil {
		f.Fatal(err)
	}
	var saved bytes.Buffer
	if err := tr.save(&saved); err != nil {
		f.Fatal(err)
	}
	f.Add(saved.Bytes())
	f.Add(bytes.ReplaceAll(saved.Bytes(), []byte("made"), []byte("../x")))
	f.Add(bytes.ReplaceAll(saved.Bytes(), []byte("made"), []byte("up/x")))
	f.Add(saved.Bytes()[:saved.Len()/2])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, archive []byte) {
		outside := t.TempDir()
		tr, err := newTree(filepath.Join(outside, "root"), &caisson.RuntimeSpec{})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.close()
		_ = tr.load(bytes.NewReader(archive))
		if files, err := os.ReadDir(outside); err != nil || len(files) != 1 || files[0].Name() != "root" {
			t.Errorf("next to the tree there is %v, %v", files, err)
		}
	})
}
