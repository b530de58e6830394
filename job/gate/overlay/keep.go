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

const maxTries = 3 // attempts to copy a file that changes during the copy

// A Keeper stores contents in a directory of objects and in a pack, each once.
type Keeper struct {
	objects int      // file descriptor of the directory of objects
	pack    *packing // receives small contents; if nil, they become objects as well
	limits  FreezeLimits
	total   caisson.Size // bytes of all files that were kept
	noClone bool         // the file system cannot share the blocks of files
	buf     []byte
	zeros   []byte
	linked  map[uint64]kept // files with more than one name, by inode
}

// kept is the state of a file when its content was kept, and the hash of the content.
type kept struct {
	ctime, size int64  // ctime in ns, size in bytes
	content     string // sha256 in hex
}

// NewKeeper returns a Keeper without a pack. objects is the file descriptor of the directory of objects.
func NewKeeper(objects int, l FreezeLimits) *Keeper {
	return &Keeper{objects: objects, limits: l, buf: make([]byte, fsat.SmallFile+1), linked: map[uint64]kept{}}
}

// keep copies the file at path beneath root, whose metadata was st. It returns its sha256 and size, or in denied the reason why
// it was not kept.
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
				return "", 0, vanished, nil
			}
			continue
		case err != nil:
			return "", 0, "", fmt.Errorf("copy %s: %w", safetext.Path(path), err)
		}
		k.total += caisson.Size(now.Size)
		return content, now.Size, "", nil
	}
	return "", st.Size, vanished, nil
}

// copy stores the content of file, sets *content to its sha256, and returns the metadata that the file had. If the file changed
// during the copy, or exceeds the limits, it returns fsat.ErrChanged and the current metadata.
func (k *Keeper) copy(file *os.File, content *string) (fsat.Stat, error) {
	before, err := fsat.Lstat(int(file.Fd()), "")
	if err != nil {
		return before, err
	}
	if before.Type != fsat.TypeFile || caisson.Size(before.Size) > k.limits.File || k.total+caisson.Size(before.Size) > k.limits.Bytes {
		return before, fsat.ErrChanged
	}
	// The size is compared as well, because the clock of a file system is coarse, and because the offset of a content in the
	// pack is computed from the sizes of the entries before it.
	if l, ok := k.linked[before.Inode]; ok && l.ctime == before.Ctime && l.size == before.Size && before.Nlink > 1 {
		*content = l.content
		return before, nil
	}
	var data []byte
	if before.Size <= fsat.SmallFile {
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
	if before.Size <= fsat.SmallFile { // after the check for changes, because every content in the pack must be in the index
		if *content, err = k.Store(data); err != nil {
			return before, err
		}
	}
	if before.Nlink > 1 {
		k.linked[before.Inode] = kept{ctime: before.Ctime, size: before.Size, content: *content}
	}
	return before, nil
}

// readSmall returns the content of a file of this size. The result is valid until k.buf is used again.
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

// Store stores data and returns its sha256.
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

// copyLarge copies a file to an object and returns its sha256. The object shares the blocks of the file if the file system supports
// that; otherwise it has the same holes.
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
		// A clone does not change if the original file does.
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

// clone makes out share the blocks of in. It returns false if the file system does not support that.
func (k *Keeper) clone(out, in *os.File) bool {
	if k.noClone {
		return false
	}
	k.noClone = unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) != nil
	return !k.noClone
}

// copySparse copies in, which has size bytes, to out except for its holes, and hashes it with sum.
func (k *Keeper) copySparse(out, in *os.File, size int64, sum hash.Hash) error {
	if err := out.Truncate(size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			data = size // a hole up to the end
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

// hashZeros hashes n zero bytes with sum.
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
