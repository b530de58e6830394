package tree

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// names returns the names of the entries of an archive.
func names(t *testing.T, archive []byte) (all []string) {
	t.Helper()
	for in := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := in.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, h.Name)
	}
}

func TestPackShown(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	for _, name := range []string{"a", "no", "d/no", "d/b", "no.d/x"} {
		full := filepath.Join(top, "in", name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var asked []string
	hides := func(p string) bool {
		asked = append(asked, p)
		return strings.HasPrefix(path.Base(p), "no")
	}
	for _, dir := range []string{"in", "."} {
		root := open(t, top)
		if dir == "." {
			root = open(t, filepath.Join(top, "in"))
		}
		var b bytes.Buffer
		asked = nil
		if err := PackVisible(root, dir, "as", hides, &b); err != nil {
			t.Fatal(err)
		}
		if got := names(t, b.Bytes()); !slices.Equal(got, []string{"as/", "as/a", "as/d/", "as/d/b"}) {
			t.Errorf("%s: the archive has %q", dir, got)
		}
		if want := []string{"a", "d", "d/b", "d/no", "no", "no.d"}; !slices.Equal(asked, want) {
			t.Errorf("%s: asked about %q", dir, asked)
		}
	}
}

func TestCopyShown(t *testing.T) {
	t.Parallel()
	hides := func(p string) bool { return slices.Contains(strings.Split(p, "/"), "no") }
	in := archive(t, tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}, dir("./"), file("./z"), file("./no"),
		dir("no/"), file("no/x"), link("l", "no"), file("a/no/x"), file("a/b"))
	var out bytes.Buffer
	if err := CopyVisible(&out, bytes.NewReader(in), hides); err != nil {
		t.Fatal(err)
	}
	if got := names(t, out.Bytes()); !slices.Equal(got, []string{"z", "l", "a/b"}) {
		t.Errorf("the copy has %q", got)
	}
	for what, bad := range map[string][]byte{
		"no archive": []byte(strings.Repeat("x", 1024)), "cut": in[:2050], "more": append(slices.Clone(in), make([]byte, 2<<20)...),
		"hard link": archive(t, tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "no"}), "way out": archive(t, file("../x")), "way round": archive(t, file("a/../no")),
	} {
		if err := CopyVisible(io.Discard, bytes.NewReader(bad), hides); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
}
