package overlay

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

const maxTries = 3 // maximum number of tries to copy a file that changes while it is copied

// A Keeper stores the contents of files, each content once: in files of a directory, which are called objects and named by
// their SHA-256, and in a pack.
type Keeper struct {
	objects int         // file descriptor of the directory of objects
	pack    *packWriter // receives the contents of small files; if it is nil, they are stored as objects
	limits  FreezeLimits
	total   caisson.Size        // total size of the files that were stored
	noClone bool                // the file system does not support sharing the blocks of files
	buf     []byte              // buffer for copying contents
	zeros   []byte              // zero bytes for hashZeros, created on first use
	linked  map[uint64]keptFile // the stored files that have more than one name, by inode number
}

// keptFile is the state of a file when its content was stored, and the SHA-256 of the content.
type keptFile struct {
	ctime, size int64  // ctime in ns since 1970, size in bytes
	content     string // SHA-256 of the content in hexadecimal
}

// NewKeeper returns a Keeper that stores contents only as files of a directory, whose file descriptor is objects.
func NewKeeper(objects int, l FreezeLimits) *Keeper {
	return &Keeper{objects: objects, limits: l, buf: make([]byte, fsat.MaxSmallFile+1), linked: map[uint64]keptFile{}}
}

// keep stores the content of the file at path beneath root, whose metadata was st. It returns the SHA-256 and the size of the
// content, or in denied the reason why it was not stored.
func (k *Keeper) keep(root int, path string, st *fsat.Stat) (content string, size int64, denied string, err error) {
	for range maxTries {
		if caisson.Size(st.Size) > k.limits.File {
			return "", st.Size, fmt.Sprintf("it has %v; files of more than %v are not kept", caisson.Size(st.Size), k.limits.File), nil
		}
		if k.total+caisson.Size(st.Size) > k.limits.Bytes {
			return "", st.Size, fmt.Sprintf("the files before it fill the %v that are kept at once", k.limits.Bytes), nil
		}
		fd, err := fsat.OpenContent(root, path)
		if err != nil {
			return "", st.Size, unreadable, fsat.UnlessConcurrent(err)
		}
		file := os.NewFile(uintptr(fd), path)
		now, err := k.copy(file, &content)
		file.Close()
		switch {
		case errors.Is(err, fsat.ErrChanged):
			st = &now
			if st.Type != fsat.TypeFile {
				return "", 0, changedMeanwhile, nil
			}
			continue
		case err != nil:
			return "", 0, "", fmt.Errorf("copy %s: %w", safetext.Path(path), err)
		}
		k.total += caisson.Size(now.Size)
		return content, now.Size, "", nil
	}
	return "", st.Size, changedMeanwhile, nil
}

// copy stores the content of file, sets *content to the SHA-256 of the content, and returns the metadata that the file had. If
// the file changed during the copy, or exceeds the limits, it returns fsat.ErrChanged and the current metadata.
func (k *Keeper) copy(file *os.File, content *string) (fsat.Stat, error) {
	before, err := fsat.Lstat(int(file.Fd()), "")
	if err != nil {
		return before, err
	}
	if before.Type != fsat.TypeFile || caisson.Size(before.Size) > k.limits.File || k.total+caisson.Size(before.Size) > k.limits.Bytes {
		return before, fsat.ErrChanged
	}
	// The size is compared in addition to the ctime, because the clock of a file system is coarse, and because the offset of a
	// content in the pack is computed from the sizes of the entries before it.
	if l, ok := k.linked[before.Inode]; ok && l.ctime == before.Ctime && l.size == before.Size && before.Nlink > 1 {
		*content = l.content
		return before, nil
	}
	var data []byte
	if before.Size <= fsat.MaxSmallFile {
		data, err = k.readSmall(file, before.Size)
	} else {
		*content, err = k.copyLarge(file, before.Size)
	}
	if err != nil && !errors.Is(err, fsat.ErrChanged) {
		return before, err
	}
	after, statErr := fsat.Lstat(int(file.Fd()), "")
	if statErr != nil {
		return before, statErr
	}
	if err != nil || !after.Same(&before) {
		return after, fsat.ErrChanged
	}
	// Small contents are stored only after the check for changes, because every content in the pack must be in the index.
	if before.Size <= fsat.MaxSmallFile {
		if *content, err = k.Store(data); err != nil {
			return before, err
		}
	}
	if before.Nlink > 1 {
		k.linked[before.Inode] = keptFile{ctime: before.Ctime, size: before.Size, content: *content}
	}
	return before, nil
}

// readSmall returns the content of a file of size bytes, or fsat.ErrChanged if it has another size. The result is valid until
// k.buf is used again.
func (k *Keeper) readSmall(file *os.File, size int64) ([]byte, error) {
	n, err := io.ReadFull(file, k.buf[:size+1])
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if int64(n) != size {
		return nil, fsat.ErrChanged
	}
	return k.buf[:n], nil
}

// Store stores data and returns its SHA-256 in hexadecimal.
func (k *Keeper) Store(data []byte) (string, error) {
	sum := sha256.Sum256(data)
	name := hex.EncodeToString(sum[:])
	if k.pack != nil {
		return name, k.pack.add(name, data)
	}
	fd, err := fsat.Open(k.objects, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err == unix.EEXIST {
		return name, nil
	}
	if err != nil {
		return "", os.NewSyscallError("open", err)
	}
	defer unix.Close(fd)
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil && err != unix.EINTR {
			return "", os.NewSyscallError("write", err)
		}
		data = data[max(n, 0):]
	}
	return name, nil
}

// copyLarge copies a file of size bytes to an object, a file named by the SHA-256 of its content, and returns this SHA-256. The
// object shares the blocks of the file if the file system supports that; otherwise it has the holes of the file.
func (k *Keeper) copyLarge(file *os.File, size int64) (string, error) {
	const tmp = "copying"
	fd, err := fsat.Open(k.objects, tmp, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return "", os.NewSyscallError("open", err)
	}
	out := os.NewFile(uintptr(fd), tmp)
	defer out.Close()
	sum := sha256.New()
	if k.clone(out, file) {
		// The clone is hashed, because the original file may change and the clone does not.
		n, err := io.CopyBuffer(struct{ io.Writer }{sum}, struct{ io.Reader }{out}, k.buf)
		if err != nil || n != size {
			return "", errors.Join(err, fsat.ErrChanged)
		}
	} else if err := k.copySparse(out, file, size, sum); err != nil {
		return "", err
	}
	name := hex.EncodeToString(sum.Sum(nil))
	return name, os.NewSyscallError("rename", unix.Renameat(k.objects, tmp, k.objects, name))
}

// clone makes the file out share the blocks of the file in. It returns false if the file system does not support that.
func (k *Keeper) clone(out, in *os.File) bool {
	if k.noClone {
		return false
	}
	k.noClone = unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) != nil
	return !k.noClone
}

// copySparse copies the file in, which has size bytes, to out, except for its holes, and adds its content to the hash sum.
func (k *Keeper) copySparse(out, in *os.File, size int64, sum hash.Hash) error {
	if err := out.Truncate(size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			data = size // the file has a hole up to its end
		} else if err != nil {
			return os.NewSyscallError("seek", err)
		}
		data = min(data, size)
		if err := k.hashZeros(sum, data-at); err != nil {
			return err
		}
		if at = data; at == size {
			break
		}
		end, err := unix.Seek(int(in.Fd()), at, unix.SEEK_HOLE)
		if err != nil {
			return os.NewSyscallError("seek", err)
		}
		end = min(end, size)
		from := io.NewSectionReader(in, at, end-at)
		to := io.NewOffsetWriter(out, at)
		n, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(to, sum)}, struct{ io.Reader }{from}, k.buf)
		if err != nil {
			return err
		}
		if n != end-at {
			return fsat.ErrChanged
		}
		at = end
	}
	return nil
}

// hashZeros adds n zero bytes to the hash sum.
func (k *Keeper) hashZeros(sum hash.Hash, n int64) error {
	if k.zeros == nil {
		k.zeros = make([]byte, 1<<20)
	}
	for n > 0 {
		m := min(n, int64(len(k.zeros)))
		sum.Write(k.zeros[:m])
		n -= m
	}
	return nil
}
