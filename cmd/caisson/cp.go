package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/internal/tree"
)

// cpCmd copies files and trees.
type cpCmd struct {
	Src string `arg:"" help:"SANDBOX:PATH, a path of this machine, or - for a tar archive on standard input." complete:"place"`
	Dst string `arg:"" help:"SANDBOX:PATH, a path of this machine, or - for a tar archive on standard output." complete:"place"`
}

func (c *cpCmd) Help() string {
	return `Into a directory that exists the copy goes under its own name, else it gets the name of the destination, as with
cp -r. Symlinks are copied as symlinks; out of a sandbox, only those that lead to files within the copy.

` + examples("caisson cp ./src web:/work", "caisson cp web:/work/result.json .", "caisson cp web:/work - | tar t",
		"git archive HEAD | caisson cp - web:/work")
}

// ProvidePaths parses the arguments, SRC and DST. Exactly one of them must be a path in a sandbox; the other result is zero.
func (c *cpCmd) ProvidePaths() (places [2]sandboxPath, err error) {
	if c.Src == "" || c.Dst == "" {
		return places, usagef("cp", "a path must not be empty")
	}
	var inside [2]bool
	for i, s := range []string{c.Src, c.Dst} {
		if places[i], inside[i], err = parseSandboxPath(s); err != nil {
			return places, err
		}
	}
	if inside[0] == inside[1] {
		return places, usagef("cp", "exactly one of SRC and DST must be SANDBOX:PATH")
	}
	return places, nil
}

func (c *cpCmd) Run(ctx context.Context, a *app, places [2]sandboxPath, api api) error {
	src, dst := places[0], places[1]
	switch inside := src.sandbox != ""; {
	case inside && c.Dst == "-":
		return copyOutArchive(ctx, a, api, src)
	case inside:
		return copyOut(ctx, a, api, src, c.Dst)
	case c.Src == "-":
		return api.WriteTree(ctx, dst.sandbox, dst.path, a.in)
	default:
		return copyIn(ctx, api, c.Src, dst)
	}
}

// copyOutArchive writes the file or tree at src to standard output as a tar archive.
func copyOutArchive(ctx context.Context, a *app, api api, src sandboxPath) error {
	if isTerminal(a.out) {
		return usagef("cp", "a tar archive cannot be written to a terminal; redirect standard output")
	}
	r, err := readTree(ctx, api, src)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(a.out, r)
	return err
}

// copyOut unpacks the archive that the sandbox sends: below dst if dst is a directory, otherwise as dst. The archive is
// untrusted: [tree.Unpack] writes only below the directory that it is given and follows no symlink in it.
func copyOut(ctx context.Context, a *app, api api, src sandboxPath, dst string) error {
	dir, as := dst, ""
	info, err := os.Stat(dst)
	switch {
	case err == nil && info.IsDir():
		if as = path.Base(src.path); as == "/" {
			as = src.sandbox // the root directory has no name; the copy is named after the sandbox
		}
	case err == nil || errors.Is(err, fs.ErrNotExist):
		if strings.HasSuffix(dst, "/") {
			return caisson.Invalidf("path", "%s is not a directory", dst)
		}
		dir, as = filepath.Split(filepath.Clean(dst))
		if dir == "" {
			dir = "."
		}
	default:
		return localError("path", dst, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return localError("path", filepath.Clean(dir), err)
	}
	defer root.Close()
	r, err := readTree(ctx, api, src)
	if err != nil {
		return err
	}
	defer r.Close()
	return tree.Unpack(r, root, tree.Options{Name: as, Skipped: func(name, target string) {
		a.infof("caisson: skipped symlink %s, which leads out of the copy to %s", safetext.Escape(name), safetext.Escape(target))
	}})
}

// readTree requests the archive of the file or tree at src.
func readTree(ctx context.Context, api api, src sandboxPath) (io.ReadCloser, error) {
	r, err := api.ReadTree(ctx, src.sandbox, src.path)
	if isNotFound(err) {
		if _, gerr := api.Get(ctx, src.sandbox); gerr != nil {
			return nil, gerr
		}
		return nil, caisson.Wrap(err, caisson.NotFound, "there is no %s in the sandbox %s; caisson sandbox files ls %s:%s lists what is beside it",
			src.path, src.sandbox, src.sandbox, path.Dir(src.path))
	}
	return r, err
}

// copyIn copies the file or tree at src, a path of this machine, to dst: below dst if dst is a directory, otherwise as dst.
func copyIn(ctx context.Context, api api, src string, dst sandboxPath) error {
	abs, err := filepath.Abs(src)
	if err != nil {
		return err
	}
	parent, base := filepath.Split(abs)
	if base == "" {
		return usagef("cp", "cannot copy the whole file system of this machine")
	}
	root, err := os.OpenRoot(parent)
	if err != nil {
		return localError("path", abs, err)
	}
	defer root.Close()
	info, err := root.Lstat(base)
	if err != nil {
		return localError("path", abs, err)
	}
	if err := checkRoom(ctx, api, root, base, dst); err != nil {
		return err
	}
	dir, as := dst.path, base
	there, err := api.StatFile(ctx, dst.sandbox, dst.path)
	switch {
	case caisson.KindOf(err) == caisson.NotFound || (err == nil && there.Type != "directory"):
		// StatFile also returns NotFound for an unknown sandbox; the next request then fails with that error.
		dir, as = path.Split(dst.path)
		if info.Mode().IsRegular() {
			return sendFile(ctx, api, root, base, dst)
		}
	case err != nil:
		return err
	}
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(tree.Pack(root, base, as, pw)) }()
	defer pr.Close() // ends the goroutine that writes the archive, if the archive is not read to its end
	return api.WriteTree(ctx, dst.sandbox, path.Clean(dir), pr)
}

// checkRoom returns Exhausted, before anything is copied, if the tree name in root is larger than the disk that the sandbox may
// use. It returns nil for a copy to a mount in the sandbox, because mounts have other limits.
func checkRoom(ctx context.Context, api api, root *os.Root, name string, dst sandboxPath) error {
	sb, err := api.Get(ctx, dst.sandbox)
	if err != nil {
		return err
	}
	mounts := []string{sb.Spec.WorkspaceAt}
	for _, m := range sb.Spec.Mounts {
		mounts = append(mounts, m.Target)
	}
	if v := sb.Spec.Volume; v != nil {
		mounts = append(mounts, v.Target)
	}
	disk := sb.Spec.Resources.Disk
	if disk == 0 || slices.ContainsFunc(mounts, func(m string) bool { return m != "" && (dst.path == m || strings.HasPrefix(dst.path, m+"/")) }) {
		return nil
	}
	larger, err := tree.LargerThan(root, name, func(string) bool { return false }, int64(disk))
	if err == nil && larger {
		return caisson.Errorf(caisson.Exhausted, "there is no space for %s: it is larger than the %s that the sandbox may write to its disk; copy less, or create a sandbox with more --disk",
			filepath.Join(root.Name(), name), disk)
	}
	return err
}

// sendFile replaces the file dst atomically with the regular file name in root.
func sendFile(ctx context.Context, api api, root *os.Root, name string, dst sandboxPath) error {
	f, err := root.Open(name)
	if err != nil {
		return localError("path", filepath.Join(root.Name(), name), err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s changed while it was opened", name)
	}
	_, err = api.WriteFile(ctx, dst.sandbox, dst.path, uint32(info.Mode().Perm()), f)
	return err
}
