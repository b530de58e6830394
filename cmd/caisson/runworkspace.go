package main

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/namemask"
	"github.com/caisson-dev/caisson/internal/tree"
	"github.com/caisson-dev/caisson/job/gate/baseline"
)

// prepareWorkspace makes dir the workspace of a run: as an open directory if the daemon is on this machine, otherwise as an
// archive. most returns the maximum size of the archive, or 0 if the daemon does not report it. The caller must call done when
// the run has been started or has failed to start.
func (a *app) prepareWorkspace(req *caisson.RunRequest, dir string, flags *workspaceFlags, most func() (caisson.Size, error)) (done func(), err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := checkOutsideDataDir(abs, a.cfg.DataDir); err != nil {
		return nil, err
	}
	if a.overSocket() {
		ws, err := flags.request(a, abs, "")
		if err != nil {
			return nil, err
		}
		req.Kind, req.Sync, req.Show = ws.Kind, ws.Mode, ws.Show
		f, err := os.OpenFile(abs, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, localError("directory", abs, err)
		}
		req.Source, req.Directory = abs, f
		return func() { f.Close() }, nil // closing f again has no effect
	}
	if flags.Kind != "" && flags.Kind != string(caisson.WorkspaceCopy) || flags.Sync != "" {
		return nil, caisson.Invalidf("workspace", "the daemon is on another machine and receives a copy; leave out --workspace-kind and --sync")
	}
	mask, err := baseline.NewMask(a.cfg.Workspaces.HiddenPatterns(), flags.ShowHidden)
	if err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return nil, localError("directory", abs, err)
	}
	if mask, err = mask.Within(real, abs); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, localError("directory", abs, err)
	}
	hidden := mask.Lister()
	if err := listHidden(root, hidden); err != nil {
		root.Close()
		return nil, localError("directory", abs, err)
	}
	if err := checkUpload(root, mask, most); err != nil {
		root.Close()
		return nil, err
	}
	r, w := io.Pipe()
	packed := make(chan struct{})
	go func() {
		defer close(packed)
		w.CloseWithError(packContents(root, mask, w))
	}()
	req.Workspace, req.Show, req.Hidden, req.HiddenCount = r, flags.ShowHidden, hidden.Hidden, hidden.Count
	return func() {
		r.Close()
		<-packed
		root.Close()
	}, nil
}

// checkUpload returns Exhausted, before anything is sent, if the archive of root would be larger than the size that most returns.
// mask hides the files that the archive omits.
func checkUpload(root *os.Root, mask *baseline.Mask, most func() (caisson.Size, error)) error {
	limit, err := most()
	if err != nil || limit == 0 {
		return err
	}
	larger, err := tree.LargerThan(root, ".", mask.Hides, int64(limit))
	if err == nil && larger {
		return caisson.Errorf(caisson.Exhausted, "the directory is larger than %s, which is the most that the daemon takes; choose a smaller one, or raise runs.workspace there", limit)
	}
	return err
}

// checkOutsideDataDir returns Invalid if dir contains the data directory or is part of it: a sandbox must not be able to read
// the data of other accounts.
func checkOutsideDataDir(dir, data string) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return localError("directory", dir, err)
	}
	if d, err := filepath.EvalSymlinks(data); err == nil {
		data = d // EvalSymlinks fails if the data directory does not exist yet
	}
	for _, pair := range [][2]string{{real, data}, {data, real}} {
		if rel, err := filepath.Rel(pair[0], pair[1]); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") {
			return caisson.Invalidf("directory", "%s and Caisson's own data in %s are one within the other; choose another directory", dir, data)
		}
	}
	return nil
}

// packedTop is the name of the top directory in the archive of a workspace while it is made. The archive that is sent to the
// daemon has no top directory.
const packedTop = "workspace"

// listHidden adds to list the files of root that are hidden from the agent. The archive of root does not contain them.
func listHidden(root *os.Root, list *namemask.Lister) error {
	return fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // the file was removed after its directory was read
		case err != nil:
			return err
		case path != "." && list.Hides(path) && d.IsDir():
			return fs.SkipDir
		}
		return nil
	})
}

// packContents writes the files of root that are not hidden to w as a tar archive, with names relative to root.
func packContents(root *os.Root, mask *baseline.Mask, w io.Writer) error {
	r, packer := io.Pipe()
	go func() { packer.CloseWithError(tree.PackVisible(root, ".", packedTop, mask.Hides, packer)) }()
	err := stripTop(w, r)
	r.CloseWithError(err) // ends the goroutine that packs the files
	return err
}

// stripTop copies a tar archive from r to w without the entry of its top directory packedTop, and removes packedTop from the
// other names.
func stripTop(w io.Writer, r io.Reader) error {
	in, out := tar.NewReader(r), tar.NewWriter(w)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name, ok := strings.CutPrefix(h.Name, packedTop+"/")
		if !ok || name == "" {
			continue // skip the entry of the top directory
		}
		h.Name = name
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
	return out.Close()
}
