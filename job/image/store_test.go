package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func freeze(t *testing.T, d *Driver, body string) Layer {
	t.Helper()
	l, err := frozen(t, d, archiveOf(t, file("f", body)))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func digests(t *testing.T, d *Driver) map[string]bool {
	t.Helper()
	all, err := d.Layers()
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]bool{}
	for _, l := range all {
		m[l.Digest] = true
	}
	return m
}

func TestPrune(t *testing.T) {
	d := newDriver(t)
	a, b := freeze(t, d, "a"), freeze(t, d, "b")
	release := d.ProtectLayers()
	c := freeze(t, d, "c")
	freed, err := d.Prune(testContext(t), func(digest string) bool { return digest == a.Digest })
	if err != nil || freed != b.Size {
		t.Errorf("freed %v, %v", freed, err)
	}
	if m := digests(t, d); !m[a.Digest] || m[b.Digest] || !m[c.Digest] {
		t.Errorf("left %v", m)
	}
	wantKind(t, d.Remove(c.Digest), caisson.Conflict)
	release()
	release()
	if err := d.Remove(c.Digest); err != nil {
		t.Error(err)
	}
	wantKind(t, d.Remove(c.Digest), caisson.NotFound)
	wantKind(t, d.Remove("../x"), caisson.Invalid)
	if again := freeze(t, d, "b"); again.Digest != b.Digest {
		t.Errorf("%v", again)
	}
	owners, err := filepath.Glob(filepath.Join(d.layers.dir, "owners/*/*"))
	if err != nil || len(owners) != 2 {
		t.Errorf("owners %v, %v", owners, err)
	}
}

func TestNewCleansUpAfterACrash(t *testing.T) {
	d := newDriver(t)
	kept := freeze(t, d, "kept")
	layers := filepath.Join(d.layers.dir, "layers")
	for _, f := range []string{filepath.Join(d.layers.dir, "tmp/123/fs/etc/x"), filepath.Join(layers, "sha256-"+strings.Repeat("a", 64)+".json"),
		filepath.Join(layers, "sha256-"+strings.Repeat("b", 64), "f")} {
		if err := os.MkdirAll(filepath.Dir(f), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	again, err := New(Config{Dir: d.layers.dir, Worker: d.worker})
	if err != nil {
		t.Fatal(err)
	}
	if m := digests(t, again); len(m) != 1 || !m[kept.Digest] {
		t.Errorf("left %v", m)
	}
	tmp, err := os.ReadDir(filepath.Join(d.layers.dir, "tmp"))
	entries, err2 := os.ReadDir(layers)
	if err != nil || err2 != nil || len(tmp) != 0 || len(entries) != 2 {
		t.Errorf("left %v %v, %v %v", tmp, entries, err, err2)
	}
}

func FuzzParseReference(f *testing.F) {
	for _, s := range []string{"debian", "debian:12", "docker.io/library/debian:12", "localhost:5000/a/b@sha256:" + strings.Repeat("a", 64),
		"a:b@sha256:" + strings.Repeat("0", 64), "x\n", "../x", "host", "UPPER/x", "[::1]:80/xx"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := parseReference(s)
		if err != nil {
			if caisson.KindOf(err) != caisson.Invalid || strings.ContainsAny(caisson.MessageOf(err), "\n\x1b") {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		if again, err := parseReference(ref); err != nil || again != ref {
			t.Errorf("%q became %q, then %q, %v", s, ref, again, err)
		}
	})
}

func TestCanonical(t *testing.T) {
	for in, want := range map[string]string{
		"host": "host", "dir:/x": "dir:/x", "tar:x.tar": "tar:x.tar", "debian": "docker.io/library/debian:latest",
		"debian:12": "docker.io/library/debian:12", "docker.io/library/debian:12": "docker.io/library/debian:12",
		"ghcr.io/a/b": "ghcr.io/a/b:latest", "localhost:5000/aa": "localhost:5000/aa:latest",
	} {
		if got, err := Canonical(in); err != nil || got != want {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	for _, bad := range []string{"", "A B", "dir:\x1b", "x:y:z", "a@sha256:12"} {
		if got, err := Canonical(bad); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%q: %q, %v", bad, got, err)
		}
	}
}
