// Package backup writes the state of a data directory as one archive, and restores such an archive as a new data directory.
//
// An archive is a tar archive, compressed with zstd. Its first entry, [headerName], contains the versions of the
// format, of Caisson and of the store. Then follow the files: those of the data directory are below "data", the configuration is
// below "host", and each directory precedes its entries. The last entry, [manifestName], contains the number of these files and
// directories, and a checksum, with which [Verify] and [Restore] detect incomplete archives.
//
// The table [parts] lists the files and directories of an archive, for both [Write] and [Restore]. Restore refuses all other
// entries. The checksum does not authenticate: a restored daemon trusts the contents of an archive as it trusts those of its data
// directory.
package backup

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io/fs"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// format is the version of the archive format.
const format = 1

// Names in an archive.
const (
	headerName   = "caisson-backup.json" // first entry of an archive
	manifestName = "manifest.json"       // last entry of an archive
	dataDir      = "data"                // directory in an archive with the files of the data directory
	hostDir      = "host"                // directory in an archive with the configuration
	// StoreName is the name of the store's file in the data directory.
	StoreName = "caisson.db"
	// ConfigName is the name of the configuration file in [RestoredDir], and AgentsName that of the directory with agents.
	ConfigName = "config.yaml"
	AgentsName = "agents" // the administrator's files of agents
	// RestoredDir is the directory in a restored data directory that has the configuration.
	RestoredDir = "restored"
)

// Limits of archives.
const (
	maxEntries  = 4 << 20   // number of entries in an archive
	maxNames    = 256 << 20 // total size of the names of all entries in bytes
	maxNameSize = 4096      // size of the name of one entry in bytes
	maxJSON     = 1 << 20   // bytes of the header and of the manifest, each
)

// A part is a file or a directory that archives may contain.
type part struct {
	path string // path of the part in an archive, below dataDir or hostDir
	// tree is true for a directory, which is archived recursively. skip reports which entries of the directory are left out;
	// its argument contains the elements of the entry's path below the part. If skip is nil, no entry is left out.
	tree    bool
	skip    func(elements []string) bool // true: the entry with this path below the part is left out
	foreign bool                         // whether files in the part may belong to other users than root
	// links reports which entries may be symlinks, with the same argument as skip. If links is nil, none may.
	links func(elements []string) bool
}

// parts lists the parts of an archive in the order in which they are written. The store is first, so that the other parts, such
// as the journals, are at least as new as the store.
var parts = []part{
	{path: dataDir + "/" + StoreName},
	{path: dataDir + "/audit.key"},
	{path: dataDir + "/credential.key"},
	{path: dataDir + "/route.key"},
	{path: dataDir + "/ssh.key"},
	{path: dataDir + "/providers.yaml"},
	{path: dataDir + "/ledger", tree: true},
	{path: dataDir + "/removals", tree: true},
	{path: dataDir + "/runs", tree: true},
	// "saved" contains the originals of files that a sync has replaced. Changes of sandboxes that have not been applied are
	// excluded; see docs/operate.md. elements are the id of the workspace and the path below its directory.
	{path: dataDir + "/workspaces", tree: true, foreign: true, skip: func(elements []string) bool {
		if len(elements) < 2 {
			return false
		}
		switch elements[1] {
		case "layers", "mask", "copy":
			return true
		case "frozen": // the directory itself is written, but not the frozen copies in it
			return len(elements) > 2
		}
		return false
	}, links: func(elements []string) bool { return len(elements) >= 4 && elements[1] == "saved" }},
	// elements are the account, the repository and the path below its directory. "mirror" is left out because mirrors can be
	// fetched again, and "new" because it contains incomplete clones.
	{path: dataDir + "/relay", tree: true, foreign: true, skip: func(elements []string) bool {
		return len(elements) == 3 && (elements[2] == "mirror" || elements[2] == "new")
	}},
	{path: hostDir + "/" + ConfigName},
	{path: hostDir + "/" + AgentsName, tree: true},
}

// findPart returns the part that the entry called name belongs to, and whether the entry may be a symlink. known is false if
// archives must not contain the entry.
func findPart(name string) (p part, link, known bool) {
	for _, p := range parts {
		if name == p.path {
			return p, false, true
		}
		if rest, below := strings.CutPrefix(name, p.path+"/"); below && p.tree {
			elements := strings.Split(rest, "/")
			return p, p.links != nil && p.links(elements), p.skip == nil || !p.skip(elements)
		}
	}
	return part{}, false, false
}

// Header describes an archive.
type Header struct {
	Format    int       `json:"format"`  // version of the format of archives
	Version   string    `json:"version"` // version of Caisson
	Schema    int       `json:"schema"`  // version of the store's schema
	CreatedAt time.Time `json:"createdAt"`
	// CredentialKey reports whether the archive contains the key that encrypts credentials. It does so if the data directory
	// has the file credential.key.
	CredentialKey bool `json:"credentialKey"`
}

// Manifest is the last entry of an archive. It does not count itself and the header, but SHA256 covers the header.
type Manifest struct {
	Entries int64  `json:"entries"` // number of files, directories and symlinks
	Bytes   int64  `json:"bytes"`   // total size of the files in bytes
	SHA256  string `json:"sha256"`  // hash of the metadata and contents of all entries, and of the header, in hexadecimal
}

// An entry is a file, directory or symlink in an archive.
type entry struct {
	name     string      // name of the entry in the archive
	mode     fs.FileMode // type and permissions of the entry
	uid, gid int         // owner and group of the entry
	size     int64       // bytes of the content of a file
	target   string      // target of a symlink; "" for other entries
}

// check returns an Invalid error unless archives may contain an entry with this name, type, mode, size and owner.
func (e *entry) check() error {
	refuse := func(format string, args ...any) error {
		return invalid("the entry %.200q %s", e.name, fmt.Sprintf(format, args...))
	}
	p, mayLink, known := findPart(e.name)
	link := e.mode.Type() == fs.ModeSymlink
	switch {
	case !fs.ValidPath(e.name) || len(e.name) > maxNameSize || strings.ContainsRune(e.name, 0):
		return refuse("has an invalid name")
	case !known:
		return refuse("is not a file of a backup")
	case link && (!mayLink || e.target == "" || len(e.target) > maxNameSize || strings.ContainsRune(e.target, 0)):
		return refuse("is a symlink where none is allowed")
	case !link && !e.mode.IsDir() && !e.mode.IsRegular():
		return refuse("is not a file, directory or symlink")
	case p.tree && e.name == p.path && !e.mode.IsDir(), !p.tree && !e.mode.IsRegular():
		return refuse("has the wrong type")
	case e.mode&^(fs.ModeType|fs.ModePerm) != 0:
		return refuse("has mode %v", e.mode)
	case e.size < 0 || !e.mode.IsRegular() && e.size != 0:
		return refuse("has the size %d", e.size)
	case (e.uid != 0 || e.gid != 0) && !p.foreign, e.uid < 0 || e.gid < 0 || e.uid >= 1<<32-1 || e.gid >= 1<<32-1:
		return refuse("belongs to the user %d and the group %d", e.uid, e.gid)
	}
	return nil
}

// A tally counts entries and hashes them.
type tally struct {
	Manifest
	hash hash.Hash // hash of the entries so far
}

// newTally returns a tally without entries.
func newTally() *tally { return &tally{hash: sha256.New()} }

// begin adds the metadata of an entry. If the entry is a file, the caller must write its content to t.hash next.
func (t *tally) begin(e *entry) {
	t.Entries++
	t.Bytes += e.size
	fmt.Fprintf(t.hash, "%q %d %d %d %d %q\n", e.name, e.mode, e.uid, e.gid, e.size, e.target)
}

// end adds the header h to the hash and returns the manifest. The caller must not use t any more.
func (t *tally) end(h *Header) (Manifest, error) {
	head, err := json.Marshal(h)
	t.hash.Write(head)
	t.SHA256 = hex.EncodeToString(t.hash.Sum(nil))
	return t.Manifest, err
}

// invalid returns an Invalid error about an archive.
func invalid(format string, args ...any) error {
	return caisson.Invalidf("backup", "%s", fmt.Sprintf(format, args...))
}
