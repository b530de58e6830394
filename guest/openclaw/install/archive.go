package install

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Limits on the archive of an npm package.
const (
	maxArchive  = 256 << 20 // maximum compressed size, in bytes
	maxUnpacked = 1 << 30   // maximum uncompressed size, in bytes
	maxEntries  = 50_000    // maximum number of files and directories
	maxName     = 1000      // maximum length of a path, in bytes
)

// answerTimeout is the timeout for the headers of the registry's response.
const answerTimeout = time.Minute

// fetch downloads a package's archive, checks its digest and unpacks it into dir, which it creates.
func fetch(ctx context.Context, s source, dir string) error {
	f, err := os.CreateTemp(filepath.Dir(dir), "archive-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := download(ctx, s, f); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return unpack(f, dir)
}

// download writes an archive to w and checks its digest. If it returns an error, the caller must not unpack the archive.
func download(ctx context.Context, s source, w io.Writer) error {
	client := &http.Client{
		Transport: &http.Transport{ResponseHeaderTimeout: answerTimeout, TLSHandshakeTimeout: answerTimeout, DisableCompression: true},
		// Redirects are not followed: the lock file has the final address, and the sandbox can reach no other host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		if caBundle() == "" {
			return fmt.Errorf("%w (the image has no certificates of authorities: install its package ca-certificates)", err)
		}
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the registry answers %d for %s", resp.StatusCode, s.url)
	}
	sum := sha512.New()
	n, err := io.Copy(io.MultiWriter(w, sum), io.LimitReader(resp.Body, maxArchive+1))
	switch {
	case err != nil:
		return err
	case n > maxArchive:
		return fmt.Errorf("the archive is larger than %d bytes", maxArchive)
	case subtle.ConstantTimeCompare(sum.Sum(nil), s.sum) != 1:
		return errors.New("the archive is not the one in the lock file: its digest differs")
	}
	return nil
}

// unpack unpacks the archive r of a package: regular files in one top directory with any name, whose content is written to the
// new directory dir.
func unpack(r io.Reader, dir string) error {
	z, err := gzip.NewReader(r)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	t := tar.NewReader(z)
	left := int64(maxUnpacked)
	for n := 0; ; n++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if n == maxEntries || h.Size > left {
			return errors.New("the archive has more than a package may have")
		}
		left -= h.Size
		switch h.Typeflag {
		case tar.TypeDir, tar.TypeXGlobalHeader:
			continue
		case tar.TypeReg:
		default:
			return fmt.Errorf("%.100q is neither file nor directory", h.Name)
		}
		name, err := stripFirst(h.Name)
		if err != nil {
			return err
		}
		if err := writeFile(root, name, t, h.FileInfo().Mode().Perm()&0o111 != 0); err != nil {
			return err
		}
	}
}

// stripFirst returns the path name in an archive without its first element. Returns an error if the rest is not a valid path.
func stripFirst(name string) (string, error) {
	_, rest, ok := strings.Cut(name, "/")
	if !ok || len(name) > maxName || !filepath.IsLocal(filepath.FromSlash(rest)) || strings.ContainsAny(rest, "\x00\\") {
		return "", fmt.Errorf("%.100q is not the name of a file of a package", name)
	}
	return filepath.Clean(filepath.FromSlash(rest)), nil
}

// writeFile creates the file at the path name in root with the content r, and missing directories. program makes it executable.
func writeFile(root *os.Root, name string, r io.Reader, program bool) error {
	mode := os.FileMode(0o644)
	if program {
		mode = 0o755
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
