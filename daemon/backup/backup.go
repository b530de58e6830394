// Package backup writes the state of a data directory as one archive, and restores such an archive as a new data directory.
//
// An archive is a tar archive, compressed with zstd. Its first entry, [headerName], contains the format and the origin. Then follow
// the files, below "data" those of the data directory and below "host" the configuration, each directory before its entries. The last
// entry, [manifestName], has the number of entries and a checksum of all of them, so that an archive that is not complete is found.
//
// [Write] and [Restore] name what is in an archive in one table, [parts]. Restore refuses every entry that is not in it. The checksum does
// not authenticate: a restored daemon trusts the contents of an archive as it trusts those of its data directory.
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

// format is the version of the form of archives.
const format = 1

// Names in an archive.
const (
	headerName   = "caisson-backup.json"
	manifestName = "manifest.json"
	dataDir      = "data"
	hostDir      = "host"
	// StoreName is the name of the store's file in the data directory.
	StoreName = "caisson.db"
	// ConfigName and AgentsName are the names of the configuration file and of the directory of agents, in [RestoredDir].
	ConfigName = "config.yaml"
	AgentsName = "agents"
	// RestoredDir is the directory in a restored data directory that has the configuration.
	RestoredDir = "restored"
)

// Limits of archives.
const (
	maxEntries  = 4 << 20
	maxNames    = 256 << 20 // bytes of all names
	maxNameSize = 4096
	maxJSON     = 1 << 20 // of the header and the manifest
)

// A part is a file or a directory that archives have.
type part struct {
	path string // below dataDir or hostDir
	// tree is set for a directory with everything in it, except what skip reports by the elements of its path below the part.
	tree    bool
	skip    func(elements []string) bool
	foreign bool // files in it may belong to other users than root
	// links reports which entries may be symlinks; nil: none.
	links func(elements []string) bool
}

// parts is what an archive consists of, in the order in which it is written. The store is first: what the other parts have in addition,
// such as calls in journals, was written after it.
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
	// Changes of sandboxes that have not been applied are excluded; see docs/operate.md. elements are the id of the workspace and the names below it.
	{path: dataDir + "/workspaces", tree: true, foreign: true, skip: func(elements []string) bool {
		if len(elements) < 2 {
			return false
		}
		switch elements[1] {
		case "layers", "mask", "copy":
			return true
		case "frozen": // reviews of it
			return len(elements) > 2
		}
		return false
	}, links: func(elements []string) bool { return len(elements) >= 4 && elements[1] == "saved" }}, // originals of what a sync has replaced
	// elements are the account, the repository and the names below it. Mirrors can be fetched again; "new" contains incomplete clones.
	{path: dataDir + "/relay", tree: true, foreign: true, skip: func(elements []string) bool {
		return len(elements) == 3 && (elements[2] == "mirror" || elements[2] == "new")
	}},
	{path: hostDir + "/" + ConfigName},
	{path: hostDir + "/" + AgentsName, tree: true},
}

// partOf returns the part that an entry belongs to, and whether the entry may be a symlink.
func partOf(name string) (p part, link, known bool) {
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
	Format    int       `json:"format"`
	Version   string    `json:"version"` // of Caisson
	Schema    int       `json:"schema"`  // of the store
	CreatedAt time.Time `json:"createdAt"`
	// CredentialKey reports whether the key that encrypts credentials is in the archive. If it is not, it is configured elsewhere.
	CredentialKey bool `json:"credentialKey"`
}

// Manifest is the end of an archive.
type Manifest struct {
	Entries int64  `json:"entries"`
	Bytes   int64  `json:"bytes"` // contents of files
	SHA256  string `json:"sha256"`
}

// An entry is a file, directory or symlink in an archive.
type entry struct {
	name     string
	mode     fs.FileMode // type and permissions
	uid, gid int
	size     int64
	target   string // of a symlink
}

// check returns an error unless archives may have the entry.
func (e *entry) check() error {
	refuse := func(format string, args ...any) error {
		return invalid("the entry %.200q %s", e.name, fmt.Sprintf(format, args...))
	}
	p, mayLink, known := partOf(e.name)
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
	hash hash.Hash
}

func newTally() *tally { return &tally{hash: sha256.New()} }

// begin adds an entry. Its content, if it has any, must be written to hash next.
func (t *tally) begin(e *entry) {
	t.Entries++
	t.Bytes += e.size
	fmt.Fprintf(t.hash, "%q %d %d %d %d %q\n", e.name, e.mode, e.uid, e.gid, e.size, e.target)
}

// end returns the manifest of an archive with this header.
func (t *tally) end(h *Header) (Manifest, error) {
	head, err := json.Marshal(h)
	t.hash.Write(head)
	t.SHA256 = hex.EncodeToString(t.hash.Sum(nil))
	return t.Manifest, err
}

// invalid returns the error for an archive that cannot be used.
func invalid(format string, args ...any) error {
	return caisson.Invalidf("backup", "%s", fmt.Sprintf(format, args...))
}
