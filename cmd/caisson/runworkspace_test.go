package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestUploadMasked: what is uploaded for a run has nothing of what is hidden, and the request lists that.
func TestUploadMasked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a", ".env", ".env.example", "sub/b", "sub/local.yaml", ".ssh/one", "public.pem"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cfg := defaultConfig()
	cfg.Host, cfg.DataDir = "http://elsewhere.example", t.TempDir()
	cfg.Workspaces.Hide = []string{"local.yaml"}
	var req caisson.RunRequest
	done, err := (&app{cfg: cfg}).prepareWorkspace(&req, dir, &workspaceFlags{ShowHidden: []string{"public.pem"}}, func() (caisson.Size, error) { return 0, nil })
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	data, err := io.ReadAll(req.Workspace)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, strings.TrimSuffix(h.Name, "/"))
	}
	if want := []string{".env.example", "a", "public.pem", "sub", "sub/b"}; !slices.Equal(names, want) {
		t.Errorf("the archive has %q", names)
	}
	if want := []string{".env", ".ssh", "sub/local.yaml"}; !slices.Equal(req.Hidden, want) || req.HiddenCount != len(want) || !slices.Equal(req.Show, []string{"public.pem"}) {
		t.Errorf("the request says that %d are hidden, %q, and shown %q", req.HiddenCount, req.Hidden, req.Show)
	}
}
