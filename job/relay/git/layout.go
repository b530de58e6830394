package git

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// Object formats, as the number of hexadecimal digits of an object name.
const (
	HexSHA1   = 40
	HexSHA256 = 64
)

// Init creates an empty bare repository in r.Dir, an empty directory. Its object names have the given number of digits. The
// result is that of git init without templates.
func (r Repo) Init(digits int) error {
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return caisson.Errorf(caisson.Conflict, "the directory for a repository is not empty")
	}
	for _, d := range []string{"objects", "objects/pack", "objects/info", "refs", "refs/heads", "refs/tags"} {
		if err := os.Mkdir(filepath.Join(r.Dir, d), 0o700); err != nil {
			return err
		}
	}
	if err := r.WriteConfig(digits); err != nil {
		return err
	}
	return r.SetHead("refs/heads/main")
}

// WriteConfig writes the configuration file of r for object names of the given number of hexadecimal digits.
func (r Repo) WriteConfig(digits int) error {
	version, format := 0, ""
	if digits == HexSHA256 {
		version, format = 1, "[extensions]\n\tobjectFormat = sha256\n"
	}
	text := fmt.Sprintf("[core]\n\trepositoryFormatVersion = %d\n\tbare = true\n\tfileMode = true\n%s[uploadpack]\n\tallowFilter = true\n", version, format)
	return replaceFile(filepath.Join(r.Dir, "config"), text)
}

// Digits returns the number of hexadecimal digits of r's object names.
func (r Repo) Digits() (int, error) {
	text, err := os.ReadFile(filepath.Join(r.Dir, "config"))
	if err != nil {
		return 0, err
	}
	if strings.Contains(string(text), "objectFormat = sha256") {
		return HexSHA256, nil
	}
	return HexSHA1, nil
}

// SetHead makes HEAD a symbolic ref to the branch with the full name name, which need not exist.
func (r Repo) SetHead(name string) error {
	return replaceFile(filepath.Join(r.Dir, "HEAD"), "ref: "+name+"\n")
}

// WriteRefs writes the refs of a repository that has none yet.
func (r Repo) WriteRefs(refs []Ref) error {
	if len(refs) == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString("# pack-refs with: sorted \n")
	for _, ref := range slices.SortedFunc(slices.Values(refs), func(a, b Ref) int { return strings.Compare(a.Name, b.Name) }) {
		fmt.Fprintf(&b, "%s %s\n", ref.Commit, ref.Name)
	}
	return replaceFile(filepath.Join(r.Dir, "packed-refs"), b.String())
}

// replaceFile replaces a file atomically: after a crash it has either its old or its new content.
func replaceFile(path, content string) error {
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Sweep removes what killed programs left behind: lock files, which would block later programs for ever, and unfinished files. No
// other program may write to the repository during the call.
func (r Repo) Sweep(ctx context.Context) error {
	return filepath.WalkDir(r.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if strings.HasPrefix(name, "tmp_objdir-") || strings.HasPrefix(name, "incoming-") {
				if err := os.RemoveAll(path); err != nil {
					return err
				}
				return fs.SkipDir
			}
			return nil
		}
		inObjects := strings.HasPrefix(path, filepath.Join(r.Dir, "objects")+"/")
		if strings.HasSuffix(name, ".lock") || inObjects && (strings.HasPrefix(name, "tmp_") || strings.HasPrefix(name, ".tmp-")) {
			return os.Remove(path)
		}
		return nil
	})
}

// MoveObjects moves objects from one object directory to another and syncs the target directory. Indexes are moved last because
// git finds packs by their indexes. Unfinished files, and .keep files, which prevent repacking, are not moved.
func MoveObjects(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, index := range []bool{false, true} {
		for _, e := range entries {
			name := e.Name()
			if strings.HasSuffix(name, ".idx") != index || strings.HasSuffix(name, ".keep") || strings.HasPrefix(name, "tmp_") {
				continue
			}
			if err := os.Rename(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
				return err
			}
		}
	}
	d, err := os.Open(to)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
