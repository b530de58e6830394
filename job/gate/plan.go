package gate

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/worker"
)

// Limits of a plan.
const (
	MaxSteps    = 200_000 // maximum number of steps in one plan
	MaxPlanPath = 4095    // maximum length of a path in bytes: PATH_MAX without its NUL
	MaxPlanLine = 1 << 16 // maximum size of one step in JSON, in bytes
)

// StagePrefix is the prefix of the name of the staging directory, which contains new and replaced files while a plan is applied.
const StagePrefix = ".caisson-"

// The values of [Node.Type].
const (
	NodeNone = "none"
	NodeFile = "file"
	NodeDir  = "dir"
	NodeLink = "symlink"
)

// A Plan is a set of changes to a host directory that are applied together or not at all. The order of its steps does not matter:
// [apply.Apply] removes from the leaves up and creates from the root down. A rename is two steps, one for each path.
type Plan struct {
	Steps []Step
}

// A Step is a change of one path from the state Before to the state After. It can be applied only if the path is in the state
// Before.
type Step struct {
	Path   string `json:"path"`   // the path relative to the host directory: clean, with slashes, UTF-8
	Before Node   `json:"before"` // the state that the path must have before the step
	After  Node   `json:"after"`  // the state that the step gives the path
}

// A Node is the state of a path. The zero Node means that no file exists.
type Node struct {
	Type string `json:"type,omitempty"` // file, dir or symlink; none or empty means that no file exists
	// Mode is the permission bits of files and directories. In Before it includes the setuid, setgid and sticky bits. In
	// After these three bits are refused for a file, and dropped for a directory unless Before has them.
	Mode uint32 `json:"mode,omitempty"`
	// Hash is the SHA-256 of a file's content or of a symlink's target, in hexadecimal digits. For symlinks in After it may be
	// left out.
	Hash string `json:"hash,omitempty"`
	// Link is a symlink's target; it is ignored in Before.
	Link []byte `json:"link,omitempty"`
}

// HashText returns the SHA-256 of text in hexadecimal digits.
func HashText(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// None reports whether n means that no file exists.
func (n Node) None() bool { return n.Type == "" || n.Type == NodeNone }

// Same reports whether two nodes describe the same state. The mode of symlinks is ignored.
func (n Node) Same(o Node) bool {
	switch {
	case n.None() || o.None():
		return n.None() && o.None()
	case n.Type != o.Type:
		return false
	case n.Type == NodeDir:
		return n.Mode == o.Mode
	case n.Type == NodeLink:
		return n.Hash == o.Hash
	}
	return n.Mode == o.Mode && n.Hash == o.Hash
}

// Validate returns an Invalid error that describes the fault of p. It sets missing hashes of symlinks, and drops the setuid,
// setgid and sticky bits that After, but not Before, has for a directory.
func (p *Plan) Validate() error {
	if len(p.Steps) > MaxSteps {
		return caisson.Errorf(caisson.Invalid, "%d paths are more than can be applied at once; apply at most %d", len(p.Steps), MaxSteps)
	}
	byPath := make(map[string]*Step, len(p.Steps))
	for i := range p.Steps {
		s := &p.Steps[i]
		if err := s.Validate(); err != nil {
			return err
		}
		if byPath[s.Path] != nil {
			return caisson.Errorf(caisson.Invalid, "%.200q is in the plan twice", s.Path)
		}
		byPath[s.Path] = s
	}
	for _, s := range byPath {
		for dir := path.Dir(s.Path); dir != "."; dir = path.Dir(dir) {
			above := byPath[dir]
			if above == nil {
				continue
			}
			if !s.Before.None() && above.Before.Type != NodeDir || !s.After.None() && above.After.Type != NodeDir {
				return caisson.Errorf(caisson.Invalid, "the plan has %.200q below %.200q, which is no directory then", s.Path, dir)
			}
		}
	}
	return nil
}

// Validate returns an Invalid error that describes the fault of s. It may complete After.Hash and drop bits of After.Mode.
func (s *Step) Validate() error {
	if err := checkPlanPath(s.Path); err != nil {
		return err
	}
	if err := s.Before.validate(s.Path, 0o7777); err != nil {
		return err
	}
	modes := uint32(0o777)
	if s.After.Type == NodeDir {
		if s.Before.Type == NodeDir {
			modes |= s.Before.Mode
		}
		s.After.Mode &= modes
	}
	if err := s.After.validate(s.Path, modes); err != nil {
		return err
	}
	if s.After.Type == NodeLink {
		text := s.After.Link
		if len(text) == 0 || len(text) > MaxPlanPath || bytes.IndexByte(text, 0) >= 0 {
			return caisson.Errorf(caisson.Invalid, "the symlink %.200q has no valid target", s.Path)
		}
		if want := HashText(text); s.After.Hash == "" {
			s.After.Hash = want
		} else if s.After.Hash != want {
			return caisson.Errorf(caisson.Invalid, "the symlink %.200q does not have the target that its hash says", s.Path)
		}
	}
	if (s.After.Type == NodeFile || s.After.Type == NodeDir) && s.After.Mode&0o400 == 0 {
		// A file that its owner cannot read could be neither checked nor restored by an undo.
		return caisson.Errorf(caisson.Invalid, "%.200q would not be readable by its owner; chmod u+r it first", s.Path)
	}
	return nil
}

// validate returns an Invalid error if n may not be a state of the path name. modes are the mode bits that are allowed.
func (n Node) validate(name string, modes uint32) error {
	switch n.Type {
	case "", NodeNone, NodeDir:
	case NodeFile, NodeLink:
		if sum, err := hex.DecodeString(n.Hash); (err != nil || len(sum) != sha256.Size || hex.EncodeToString(sum) != n.Hash) && (n.Type != NodeLink || n.Hash != "") {
			return caisson.Errorf(caisson.Invalid, "the plan does not say what is in %.200q", name)
		}
	default:
		return caisson.Errorf(caisson.Invalid, "%.200q is a %.20s, which is never applied", name, n.Type)
	}
	if n.Type != NodeLink && n.Mode&^modes != 0 {
		return caisson.Errorf(caisson.Invalid, "the plan has mode %o for %.200q; only permissions are applied", n.Mode, name)
	}
	return nil
}

// checkPlanPath returns an Invalid error if name may not be the path of a step.
func checkPlanPath(name string) error {
	bad := func(why string) error {
		return caisson.Errorf(caisson.Invalid, "the plan has a path %.200q, which %s", name, why)
	}
	switch {
	case name == "" || name == "." || name[0] == '/' || path.Clean(name) != name || name == ".." || strings.HasPrefix(name, "../"):
		return bad("is not clean and relative")
	case len(name) > MaxPlanPath || strings.IndexByte(name, 0) >= 0 || !utf8.ValidString(name):
		return bad("is too long or not UTF-8")
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > 255 {
			return bad("has too long a name")
		}
		if strings.HasPrefix(part, StagePrefix) {
			return bad("has a name of Caisson's own")
		}
	}
	return nil
}

// Sorted returns the steps of p with directories before their content.
func (p *Plan) Sorted() []Step {
	steps := slices.Clone(p.Steps)
	// The path of a directory is a prefix of the paths of its entries, so it sorts before them.
	slices.SortFunc(steps, func(a, b Step) int { return cmp.Compare(a.Path, b.Path) })
	return steps
}

// Encode writes p in the form that [DecodePlan] reads: one JSON object a line.
func (p *Plan) Encode(w io.Writer) error { return worker.WriteRows(w, p.Steps) }

// Input validates p and returns it as the input of a worker job, in the form that Encode writes.
func (p *Plan) Input() (*bytes.Buffer, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	return &out, p.Encode(&out)
}

// DecodePlan reads a plan and validates it. Its use of memory is bounded for any input.
func DecodePlan(r io.Reader) (*Plan, error) {
	steps, err := worker.ReadRows[Step](r, MaxSteps, MaxPlanLine)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Invalid, "the plan is malformed")
	}
	p := &Plan{Steps: steps}
	return p, p.Validate()
}

// Moved is the cause of a Conflict error of an apply: the paths of the host that are not in the states that the plan expects.
type Moved struct {
	Paths []string // the first paths, at most 100
	More  bool     // there are more paths in other states than those in Paths
}

// Error implements error. The text lists the first of the host's paths that are not in the expected states, at most 5.
func (m *Moved) Error() string {
	var names []string
	for _, p := range m.Paths[:min(len(m.Paths), 5)] {
		names = append(names, strconv.Quote(p))
	}
	text := strings.Join(names, ", ")
	if m.More || len(m.Paths) > len(names) {
		text += " and others"
	}
	return text
}

// Conflict returns a Conflict error with m as its cause.
func (m *Moved) Conflict() error {
	return caisson.Wrap(m, caisson.Conflict, "the directory has changed meanwhile: %s; nothing was done, look at the changes again", m.Error())
}
