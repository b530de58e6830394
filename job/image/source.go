package image

import (
	"context"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/worker"
)

// sourceFile returns a file with a duplicate of h's descriptor, so that h can be closed at any time. Returns Invalid if the
// file is not of the type wantType.
func sourceFile(h caisson.Handle, wantType uint32, what string) (*os.File, error) {
	fd, err := unix.FcntlInt(h.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, caisson.Wrap(os.NewSyscallError("fcntl", err), caisson.Internal, "cannot use the image's source")
	}
	f := os.NewFile(uintptr(fd), "source")
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != wantType {
		f.Close()
		return nil, caisson.Invalidf("image", "the source is not %s", what)
	}
	return f, nil
}

// pullDir copies a directory into a layer. A job with the permissions of the directory's owner reads it, and every file of
// the image is owned by the guest's root. The digest covers paths, types, modes, sizes, link targets and contents, not times.
func (d *Driver) pullDir(ctx context.Context, ref string, h caisson.Handle, account string, report func(caisson.Progress)) (*caisson.Image, error) {
	src, err := sourceFile(h, unix.S_IFDIR, "a directory")
	if err != nil {
		return nil, err
	}
	defer src.Close()
	report(caisson.Progress{Stage: "unpack", Detail: ref})
	args := unpackArgs{MaxIn: d.maxOut, MaxOut: d.maxOut, MaxEntries: maxEntries, OwnedByRoot: true, Content: true}
	build := func(ctx context.Context, dir string) (*unpackResult, error) {
		from, to, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		read := func(ctx context.Context) error {
			_, err := jobArchive.Run(ctx, d.worker, worker.None{}, worker.RunInput{Root: src, Files: []*os.File{to}})
			return err
		}
		return d.pipe(ctx, read, to, from, dir, args, func(n int64) {
			report(caisson.Progress{Stage: "unpack", Detail: ref, Done: n})
		})
	}
	l, err := d.buildLayer(ctx, ref, account, build, func(u *unpackResult) string { return u.Content })
	if err != nil {
		return nil, err
	}
	return assemble(ref, l.Digest, account, []Layer{l}, caisson.ImageConfig{})
}

// pullTar unpacks an archive of a root file system as a single layer. The image's digest is that of the file.
func (d *Driver) pullTar(ctx context.Context, ref string, h caisson.Handle, account string, report func(caisson.Progress)) (*caisson.Image, error) {
	src, err := sourceFile(h, unix.S_IFREG, "a file")
	if err != nil {
		return nil, err
	}
	defer src.Close()
	// The file offset may not be 0, because it is shared with the process that passed the descriptor.
	if _, err := src.Seek(0, io.SeekStart); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot read the image's source")
	}
	report(caisson.Progress{Stage: "unpack", Detail: ref})
	args := unpackArgs{MaxIn: d.maxIn, MaxOut: d.maxOut, MaxEntries: maxEntries}
	var digest string
	build := func(ctx context.Context, dir string) (*unpackResult, error) {
		return d.runUnpack(ctx, src, dir, args, func(n int64) {
			report(caisson.Progress{Stage: "unpack", Detail: ref, Done: n})
		})
	}
	l, err := d.buildLayer(ctx, ref, account, build, func(u *unpackResult) string { digest = u.In; return u.DiffID })
	if err != nil {
		return nil, err
	}
	return assemble(ref, digest, account, []Layer{l}, caisson.ImageConfig{})
}

// Layer makes a layer owned by account from an archive of the changes to a root file system, as written by gVisor ("tar
// rootfs-upper"). The digest is that of the archive with a prefix, so that it never equals the digest of a layer from a registry.
func (d *Driver) Layer(ctx context.Context, account string, archive *os.File) (Layer, error) {
	if !caisson.ValidAccountName(account) {
		return Layer{}, caisson.Errorf(caisson.Invalid, "%.40q is not an account", account)
	}
	args := unpackArgs{MaxIn: d.maxOut, MaxOut: d.maxOut, MaxEntries: maxEntries, Frozen: true}
	build := func(ctx context.Context, dir string) (*unpackResult, error) {
		return d.runUnpack(ctx, archive, dir, args, func(int64) {})
	}
	return d.buildLayer(ctx, "frozen layer", account, build, func(u *unpackResult) string {
		return digestOfBytes([]byte("caisson frozen layer\n" + u.DiffID))
	})
}

// buildLayer builds and publishes a layer whose digest is known only after it is built. build creates the files in a directory,
// and name returns the digest for the result of build.
func (d *Driver) buildLayer(ctx context.Context, what, account string, build func(context.Context, string) (*unpackResult, error), name func(*unpackResult) string) (Layer, error) {
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-ctx.Done():
		return Layer{}, ctx.Err()
	}
	dir, done, err := d.layers.tempDir()
	if err != nil {
		return Layer{}, storeError(err)
	}
	defer done()
	u, err := build(ctx, dir)
	if err != nil {
		return Layer{}, err
	}
	d.warn(what, u.Warnings)
	l, err := d.layers.publish(dir, Layer{Digest: name(u), Size: caisson.Size(u.Size), Entries: u.Entries})
	if err != nil {
		return Layer{}, storeError(err)
	}
	return l, storeError(d.layers.setOwner(account, l.Digest))
}
