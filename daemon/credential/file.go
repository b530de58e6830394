package credential

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// maxKeyFile is the maximum size of a key file in bytes.
const maxKeyFile = 16 << 10

// auditKeySize is the size in bytes of the key that [LoadKeyFile] reads or creates; it authenticates the audit log.
const auditKeySize = 32

// LoadKeyFile returns the 32 bytes that the file at path has in hexadecimal. If the file does not exist, it creates the file with
// random bytes, and made is true. It returns Conflict unless the file has mode 0600 and belongs to the user of this process.
func LoadKeyFile(path string) (key caisson.Secret, made bool, err error) {
	text, err := readPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		var b [auditKeySize]byte
		rand.Read(b[:])
		fresh := caisson.NewSecret(hex.EncodeToString(b[:]) + "\n")
		text, err = createPrivate(path, fresh)
		made = err == nil && text.Equal(fresh) // false if another process created the file before this one
	}
	if err != nil {
		return caisson.Secret{}, false, err
	}
	b, err := hex.DecodeString(strings.TrimSpace(text.Reveal()))
	if err != nil || len(b) != auditKeySize {
		return caisson.Secret{}, false, caisson.Errorf(caisson.Conflict, "%s does not hold a key of %d bytes in hexadecimal; put it back from a backup, or move it away for a new one", path, auditKeySize)
	}
	return caisson.NewSecret(string(b)), made, nil
}

// readPrivate returns the content of a key file. Returns [fs.ErrNotExist] if there is none, and Conflict if others may read it.
func readPrivate(path string) (caisson.Secret, error) {
	var none caisson.Secret
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return none, err
	case err != nil:
		return none, caisson.Wrap(err, caisson.Conflict, "the key file %s cannot be opened; it must be a file, not a link, that this user may read", path)
	}
	defer f.Close()
	if err := checkPrivate(f); err != nil {
		return none, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	defer clear(b)
	switch {
	case err != nil:
		return none, caisson.Wrap(err, caisson.Conflict, "the key file %s cannot be read", path)
	case len(b) > maxKeyFile:
		return none, caisson.Errorf(caisson.Conflict, "the key file %s is too large for a key file", path)
	case len(b) == 0:
		return none, caisson.Errorf(caisson.Conflict, "the key file %s is empty; restore it from a backup, or remove it to create a new key", path)
	}
	return caisson.NewSecret(string(b)), nil
}

// checkPrivate returns Conflict if other users may have read or written f. It checks the open file, because its name could
// refer to another file by now.
func checkPrivate(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return caisson.Errorf(caisson.Conflict, "the key file %s is not a regular file", f.Name())
	case int(st.Uid) != os.Geteuid():
		return caisson.Errorf(caisson.Conflict, "the key file %s belongs to user %d, not to user %d that runs Caisson; the key may be disclosed", f.Name(), st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		return caisson.Errorf(caisson.Conflict, "the key file %s can be read by other users (mode %04o); if none has read it, run chmod 600 on it, else make a new key", f.Name(), st.Mode&0o7777)
	}
	return nil
}

// createPrivate creates a file with this content atomically and durably, and returns the content. If another process has created
// the file meanwhile, it returns the content of that file.
func createPrivate(path string, content caisson.Secret) (caisson.Secret, error) {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return caisson.Secret{}, caisson.Wrap(err, caisson.Conflict, "cannot create the key file %s; its directory must exist", path)
	}
	defer dir.Close()
	name, tmp := filepath.Base(path), filepath.Base(path)+".tmp-"+rand.Text()
	if err := writeFile(dir, tmp, content); err != nil {
		return caisson.Secret{}, caisson.Wrap(err, caisson.Conflict, "cannot create the key file %s", path)
	}
	// Link fails if the name exists; rename would replace a key that is in use.
	err = dir.Link(tmp, name)
	if rmErr := dir.Remove(tmp); err == nil {
		err = rmErr
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return readPrivate(path)
	case err != nil:
		return caisson.Secret{}, caisson.Wrap(err, caisson.Conflict, "cannot create the key file %s", path)
	}
	d, err := dir.Open(".")
	if err != nil {
		return caisson.Secret{}, err
	}
	return content, errors.Join(d.Sync(), d.Close())
}

// writeFile creates a new file that only this user can read.
func writeFile(dir *os.Root, name string, content caisson.Secret) error {
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, content.Reveal())
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, dir.Remove(name))
	}
	return nil
}
