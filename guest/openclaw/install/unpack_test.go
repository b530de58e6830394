package install

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// packed returns an archive of one file and its digest in the form of a lock file.
func packed(t *testing.T, name, data string) (archive []byte, integrity string) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(data))}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(b.Bytes())
	return b.Bytes(), "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

// TestDirect: if the lock file lacks npm, only the packages for this machine are unpacked, as they are.
func TestDirect(t *testing.T) {
	archive, integrity := packed(t, "package/bin/tool", "#!/bin/sh\n")
	out, outside := packed(t, "package/../../x", "x")
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		switch r.URL.Path {
		case "/tool/-/tool-1.0.0.tgz":
			w.Write(archive)
		case "/out/-/out-1.0.0.tgz":
			w.Write(out)
		default:
			http.NotFound(w, r)
		}
	}))
	defer srv.Close()
	cpu := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if cpu == "" {
		cpu = runtime.GOARCH
	}
	tool := lockPackage{Version: "1.0.0", Resolved: registry + "tool/-/tool-1.0.0.tgz", Integrity: integrity, OS: []string{runtime.GOOS}, CPU: []string{cpu}}
	with := func(change func(*lockPackage)) lockPackage {
		p := tool
		change(&p)
		return p
	}
	other := with(func(p *lockPackage) { p.CPU = []string{"mips"}; p.Resolved = registry + "other/-/other-1.0.0.tgz" })
	for _, c := range []struct {
		name     string
		packages map[string]lockPackage
		want     string // in the error; "" if there is none
	}{
		{"one for this machine, one for another", map[string]lockPackage{"": {}, "node_modules/@of/tool": tool, "node_modules/other": other}, ""},
		{"none for this machine", map[string]lockPackage{"node_modules/other": other}, "nothing for"},
		{"not for this system", map[string]lockPackage{"node_modules/tool": with(func(p *lockPackage) { p.OS = []string{"!" + runtime.GOOS} })}, "nothing for"},
		{"another digest", map[string]lockPackage{"node_modules/tool": with(func(p *lockPackage) { p.Integrity = outside })}, "digest differs"},
		{"not there", map[string]lockPackage{"node_modules/tool": with(func(p *lockPackage) { p.Resolved = registry + "gone/-/gone.tgz" })}, "404"},
		{"a file outside", map[string]lockPackage{"node_modules/out": with(func(p *lockPackage) { p.Resolved, p.Integrity = registry+"out/-/out-1.0.0.tgz", outside })}, "not the name of a file"},
		{"below another", map[string]lockPackage{"node_modules/a/node_modules/tool": tool}, "top level"},
		{"elsewhere", map[string]lockPackage{"node_modules/../../tool": tool}, "top level"},
		{"a bundle", map[string]lockPackage{"node_modules/tool": with(func(p *lockPackage) { p.InBundle = true })}, "top level"},
		{"no registry", map[string]lockPackage{"node_modules/tool": with(func(p *lockPackage) { p.Resolved = "git+https://example.com/tool.git" })}, "not from a registry"},
		{"nothing", map[string]lockPackage{}, "nothing for"},
	} {
		t.Run(c.name, func(t *testing.T) {
			top := t.TempDir()
			dir := filepath.Join(top, "opt")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			data, err := json.Marshal(map[string]any{"lockfileVersion": 3, "packages": c.packages})
			if err != nil {
				t.Fatal(err)
			}
			lock := filepath.Join(dir, "package-lock.json")
			if err := os.WriteFile(lock, data, 0o644); err != nil {
				t.Fatal(err)
			}
			in := &installer{dir: dir, base: srv.URL + "/", log: io.Discard}
			err = in.run(t.Context(), lock)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q", err, c.want)
				}
				if entries, err := os.ReadDir(top); err != nil || len(entries) != 1 {
					t.Errorf("outside of the directory there is %v, %v", entries, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(filepath.Join(dir, "node_modules/@of/tool/bin/tool"))
			if err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("%v, %v", info, err)
			}
			if _, err := os.Stat(filepath.Join(dir, "node_modules/other")); err == nil {
				t.Error("what is for another machine was installed")
			}
		})
	}
	if asked == 0 {
		t.Error("nothing was asked of the registry")
	}
}
