package baseline_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/workertest"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
)

// TestMaskArchive checks that a job removes hidden files from an archive of an untrusted client.
func TestMaskArchive(t *testing.T) {
	runner := workertest.Runner(t)
	var in bytes.Buffer
	w := tar.NewWriter(&in)
	for _, name := range []string{"./a.txt", "./.env", ".env.example", "public.pem", "sub/key.pem"} {
		gatetest.Must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: 1}))
		_, err := io.WriteString(w, "x")
		gatetest.Must(t, err)
	}
	gatetest.Must(t, w.Close())
	mask := func(r io.Reader, most int64) (baseline.MaskResult, []string, error) {
		out, err := os.Create(t.TempDir() + "/out")
		gatetest.Must(t, err)
		defer out.Close()
		left, err := baseline.MaskArchive(t.Context(), runner, baseline.DefaultHidden(), []string{"public.pem"}, r, out, most)
		var all []string
		_, seekErr := out.Seek(0, io.SeekStart)
		gatetest.Must(t, seekErr)
		for tr := tar.NewReader(out); err == nil; {
			h, err := tr.Next()
			if err != nil {
				break
			}
			all = append(all, h.Name)
		}
		return left, all, err
	}
	left, all, err := mask(bytes.NewReader(in.Bytes()), 1<<20)
	if err != nil || !slices.Equal(all, []string{"a.txt", ".env.example", "public.pem"}) || left.Count != 2 || !slices.Equal(left.Hidden, []string{".env", "sub/key.pem"}) {
		t.Errorf("the copy has %q, left out is %+v, %v", all, left, err)
	}
	if _, _, err := mask(bytes.NewReader(in.Bytes()), 1<<10); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("more than may be: %v", err)
	}
	if _, _, err := mask(bytes.NewReader(bytes.Repeat([]byte("x"), 1<<20)), 1<<20); caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("no archive: %v", err)
	}
	broken := errors.New("the client has gone")
	if _, _, err := mask(io.MultiReader(bytes.NewReader(in.Bytes()[:700]), iotest.ErrReader(broken)), 1<<20); !errors.Is(err, broken) {
		t.Errorf("a client that goes: %v", err)
	}
}
