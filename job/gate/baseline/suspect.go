package baseline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// Limits of a list of files that may contain secrets. They keep the reply of a job below its maximum size of 1 MiB.
const (
	maxSuspects     = 100       // maximum number of files
	maxSuspectBytes = 128 << 10 // maximum size of the paths and reasons of the listed files in bytes
)

// Suspects are files that are visible to a sandbox and may contain secrets.
type Suspects struct {
	List  []caisson.Suspect `json:"list,omitempty"`  // the first of the files, each with the reason
	Count int               `json:"count,omitempty"` // number of all files that may contain secrets

	bytes int // size of the paths and reasons of all files in bytes
}

// add adds the file at path; why is the reason.
func (s *Suspects) add(path, why string) {
	s.Count++
	one := caisson.Suspect{Path: safetext.Path(path), Why: why}
	if s.bytes += len(one.Path) + len(one.Why); len(s.List) < maxSuspects && s.bytes <= maxSuspectBytes {
		s.List = append(s.List, one)
	}
}

// suspectReason returns the reason why the name of the visible file at this path indicates a secret, or "" if it does not.
func suspectReason(mask *Mask, file string) string {
	name := strings.ToLower(path.Base(file))
	switch {
	case strings.HasSuffix(name, ".tfstate"), strings.HasSuffix(name, ".tfstate.backup"):
		return "the state of Terraform has passwords and keys in the clear"
	case strings.HasSuffix(name, ".tfvars"), strings.HasSuffix(name, ".tfvars.json"):
		return "variables of Terraform often are passwords and keys"
	case strings.HasSuffix(name, "-key.json"), strings.HasSuffix(name, "_key.json"):
		return "keys of service accounts have such names"
	case name == "auth.json":
		return "logins have this name"
	case strings.HasPrefix(name, "id_") && !strings.Contains(name, "."):
		return "private keys of SSH have such names"
	}
	if original := originalOfBackup(file); original != "" && mask.HidesName(original) {
		return "a backup of a file that would be hidden"
	}
	return ""
}

// originalOfBackup returns the path of the original if file has the name of a backup, otherwise "".
func originalOfBackup(file string) string {
	for _, end := range []string{"~", ".bak", ".backup", ".old", ".orig", ".save"} {
		if len(file) > len(end) && strings.EqualFold(file[len(file)-len(end):], end) {
			return file[:len(file)-len(end)]
		}
	}
	return ""
}

// SearchLimits are the limits of a search for secrets in the files that a sandbox can see. Zero fields mean the default.
type SearchLimits struct {
	File  int64         // size of the largest file that is searched, in bytes; default 256 KiB
	Files int           // maximum number of files; default 5,000
	Bytes int64         // maximum size of all files together in bytes; default 32 MiB
	Time  time.Duration // time limit of the search; default 10 s
}

func (l SearchLimits) withDefaults() SearchLimits {
	l.File = cmp.Or(l.File, 256<<10)
	l.Files = cmp.Or(l.Files, 5000)
	l.Bytes = cmp.Or(l.Bytes, 32<<20)
	l.Time = cmp.Or(l.Time, 10*time.Second)
	return l
}

// SearchResult is the result of a search for secrets in the files that a sandbox can see: the files that may contain some.
type SearchResult struct {
	Suspects
	// Searched is the number of files whose contents were searched. It does not include files that are reported because of
	// their names or as hard links.
	Searched int64 `json:"searched"`
	// Unsearched is the number of other visible files, which are not reported and were not searched: they are too large or too
	// many, changed during the search, could not be read, or are in .git or node_modules.
	Unsearched int64 `json:"unsearched"`
}

// Search looks for secrets in the files of the directory root that manifest has recorded and that are visible to a sandbox. It
// searches their contents, configurations of git first and then the newest files, and compares their inodes with those of
// hidden files to find hard links. It does not repeat what [Scan] has reported by name.
func Search(ctx context.Context, root, manifest *os.File, limits SearchLimits) (SearchResult, error) {
	defer fsat.KeepAlive(root)
	m, err := OpenManifest(manifest)
	if err != nil {
		return SearchResult{}, err
	}
	rules, err := check.LoadSecretRules()
	if err != nil {
		return SearchResult{}, caisson.Wrap(err, caisson.Internal, "the rules for secrets cannot be read")
	}
	l := limits.withDefaults()
	s := &searcher{root: int(root.Fd()), rules: rules, limits: l}
	files, err := s.choose(m)
	if err != nil {
		return SearchResult{}, err
	}
	timed, cancel := context.WithTimeout(ctx, l.Time)
	defer cancel()
	for i := range files {
		if err := s.searchFile(timed, &files[i]); err != nil {
			return s.found, err
		}
		if timed.Err() != nil {
			break
		}
	}
	s.found.Unsearched = s.all - s.found.Searched
	return s.found, ctx.Err()
}

// searcher is the state of one [Search] for secrets in files.
type searcher struct {
	root   int                // file descriptor of the directory
	rules  *check.SecretRules // the rules that find secrets in contents
	limits SearchLimits
	all    int64        // number of visible files, without those that are reported because of their names or as hard links
	bytes  int64        // number of bytes that were read
	found  SearchResult // the result so far
}

// choose returns the records of the files to be searched, in the order of the search. It also reports the visible files that
// are hard links of hidden files.
func (s *searcher) choose(m *Manifest) ([]Record, error) {
	hidden := map[uint64]string{}
	for r, err := range m.Below("") {
		if err != nil {
			return nil, err
		}
		if r.Hidden && r.Type == fsat.TypeFile {
			hidden[r.Inode] = r.Path
		}
	}
	var files []Record
	first := func(a, b Record) int {
		return cmp.Or(btoi(gitConfig(b.Path))-btoi(gitConfig(a.Path)), cmp.Compare(b.Mtime, a.Mtime), fsat.Compare(a.Path, b.Path))
	}
	trim := func() {
		slices.SortFunc(files, first)
		files = files[:min(len(files), s.limits.Files)]
	}
	for r, err := range m.Below("") {
		if err != nil {
			return nil, err
		}
		// Scan has already reported the files with suspect names.
		if r.Hidden || r.Type != fsat.TypeFile || suspectReason(m.Mask, r.Path) != "" {
			continue
		}
		if of := hidden[r.Inode]; of != "" {
			s.found.add(r.Path, "a hard link of the hidden file "+safetext.Path(of))
			continue
		}
		s.all++
		if r.Size <= s.limits.File && searchable(r.Path) {
			if files = append(files, r); len(files) >= 2*s.limits.Files {
				trim()
			}
		}
	}
	trim()
	return files, nil
}

// searchable reports whether the file at this path is searched for secrets. Objects of git are not, because they are
// compressed, nor are files of npm packages, because they contain keys for tests.
func searchable(file string) bool {
	in := "/" + file
	return gitConfig(file) || !strings.Contains(in, "/.git/") && !strings.Contains(in, "/node_modules/")
}

// gitConfig reports whether the file at this path is the configuration of a git repository or submodule, which contains the
// URLs of remotes.
func gitConfig(file string) bool {
	in := "/" + file
	return strings.HasSuffix(in, "/.git/config") || strings.HasSuffix(in, "/config") && strings.Contains(in, "/.git/modules/")
}

// urlPassword matches URLs that contain a password or token.
var urlPassword = regexp.MustCompile(`://[^\s/:@]*:[^\s/:@]+@|://[^\s/:@]{20,}@`)

// searchFile searches the content of the file of r for secrets.
func (s *searcher) searchFile(ctx context.Context, r *Record) error {
	if s.bytes+r.Size > s.limits.Bytes {
		return nil
	}
	data, err := fsat.ReadContent(ctx, s.root, r.Path, &r.Stat, s.limits.File)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil && (errors.Is(err, fsat.ErrChanged) || fsat.UnlessConcurrent(err) == nil):
		return nil
	case err != nil:
		return fmt.Errorf("read %s: %w", safetext.Path(r.Path), err)
	}
	s.bytes += r.Size
	if fsat.IsText(data) {
		why, err := s.describe(ctx, r.Path, string(data))
		if err != nil {
			return nil // the time limit of the search is exceeded
		}
		if why != "" {
			s.found.add(r.Path, why)
		}
	}
	s.found.Searched++
	return nil
}

// describe returns a description of the first possible secret in the content of the file at path, or "" if there is none. It does
// not use rules that match only the words around a secret, because they have too many false positives for a whole directory.
func (s *searcher) describe(ctx context.Context, path, text string) (string, error) {
	if gitConfig(path) && urlPassword.MatchString(text) {
		return "the address of a remote has a password or token in it", nil
	}
	found, err := s.rules.FindWhere(ctx, path, text, func(r *check.SecretRule) bool { return r.Regex != "" && !r.Assigned })
	if err != nil || len(found) == 0 {
		return "", err
	}
	return fmt.Sprintf("line %d looks like a secret: %s", found[0].Line, found[0].Rule), nil
}
