package openclaw

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/caisson-dev/caisson/internal/safetext"
)

// Limits on skills, which are untrusted content.
const (
	maxSkills = 500       // skills of one file system
	maxSkill  = 256 << 10 // bytes of a SKILL.md
	maxHead   = 64 << 10  // bytes of the front matter of a SKILL.md
	maxNeeds  = 50        // maximum number of requirements of each kind that one skill may have
	maxHosts  = 20        // hosts that are found in one SKILL.md
	maxDepth  = 6         // depth of directories below a directory of skills
)

// A Skill contains the requirements of a skill, according to its SKILL.md.
type Skill struct {
	Name     string   // name of the skill
	Dir      string   // path of the skill's directory
	Programs []string // programs of which all are required
	AnyOf    []string // programs of which at least one is required
	Env      []string // environment variables that are required
	Config   []string // paths in OpenClaw's configuration that must be true
	Systems  []string // supported operating systems; empty means all
	Hosts    []string // hosts of the URLs in the text of the SKILL.md, to which the skill probably connects
	Install  []string // commands with which OpenClaw would install what is missing, for display
}

// frontMatter is the used part of the YAML at the beginning of a SKILL.md.
type frontMatter struct {
	Name     string `yaml:"name"`
	Metadata struct {
		OpenClaw *skillNeeds `yaml:"openclaw"`
		ClawdBot *skillNeeds `yaml:"clawdbot"` // earlier name of the field openclaw
	} `yaml:"metadata"`
}

// skillNeeds are the requirements of a skill, and the ways to install what is missing.
type skillNeeds struct {
	OS       []string `yaml:"os"`     // supported operating systems; empty means all
	Always   bool     `yaml:"always"` // not used
	Requires struct { // what the skill needs
		Bins    []string `yaml:"bins"`
		AnyBins []string `yaml:"anyBins"`
		Env     []string `yaml:"env"`
		Config  []string `yaml:"config"`
	} `yaml:"requires"`
	PrimaryEnv string     `yaml:"primaryEnv"` // another required environment variable
	Install    []struct { // ways to install what is missing
		Kind    string `yaml:"kind"`
		Formula string `yaml:"formula"`
		Package string `yaml:"package"`
		Module  string `yaml:"module"`
	} `yaml:"install"`
}

// errFrontMatter is the error of a SKILL.md that does not begin with front matter of at most maxHead bytes.
var errFrontMatter = errors.New("it has no front matter between two lines of ---")

// ParseSkill parses the SKILL.md of the skill in the directory dir.
func ParseSkill(dir string, b []byte) (*Skill, error) {
	head, body, err := splitSkill(b)
	if err != nil {
		return nil, err
	}
	var f frontMatter
	if err := yaml.Unmarshal(head, &f); err != nil {
		return nil, fmt.Errorf("its front matter is not valid: %w", err)
	}
	s := &Skill{Name: f.Name, Dir: dir, Hosts: hosts(body)}
	if s.Name == "" {
		s.Name = path.Base(dir)
	}
	s.Name = safetext.Escape(truncate(s.Name))
	n := f.Metadata.OpenClaw
	if n == nil {
		n = f.Metadata.ClawdBot
	}
	if n == nil {
		return s, nil
	}
	s.Programs, s.AnyOf, s.Config, s.Systems = cleanNames(n.Requires.Bins), cleanNames(n.Requires.AnyBins), cleanNames(n.Requires.Config), cleanNames(n.OS)
	s.Env = cleanNames(append(slices.Clone(n.Requires.Env), n.PrimaryEnv))
	for _, i := range n.Install[:min(len(n.Install), maxNeeds)] {
		if what := i.Formula + i.Package + i.Module; what != "" && i.Kind != "" {
			s.Install = append(s.Install, safetext.Escape(truncate(i.Kind+" "+what)))
		}
	}
	return s, nil
}

// splitSkill splits a SKILL.md into front matter and body.
func splitSkill(b []byte) (head, body []byte, err error) {
	b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))
	if len(b) > maxSkill || !utf8.Valid(b) {
		return nil, nil, fmt.Errorf("it is not text of at most %d bytes", maxSkill)
	}
	b = bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n"))
	rest, ok := bytes.CutPrefix(b, []byte("---\n"))
	if !ok {
		return nil, nil, errFrontMatter
	}
	head, body, ok = bytes.Cut(rest, []byte("\n---\n"))
	if !ok {
		head, ok = bytes.CutSuffix(rest, []byte("\n---"))
	}
	if !ok || len(head) > maxHead {
		return nil, nil, errFrontMatter
	}
	return head, body, nil
}

// cleanNames returns the distinct names of a list, at most maxNeeds, trimmed, shortened, and with control characters escaped.
func cleanNames(list []string) []string {
	var out []string
	for _, s := range list {
		s = safetext.Escape(strings.TrimSpace(truncate(s)))
		if s != "" && !slices.Contains(out, s) && len(out) < maxNeeds {
			out = append(out, s)
		}
	}
	return out
}

var (
	urlForm  = regexp.MustCompile(`https?://[A-Za-z0-9][A-Za-z0-9.-]{2,252}`)           // beginning of a URL, with its host
	hostForm = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,}$`) // host name with a domain, in lower case
)

// hosts returns the hosts of the URLs in a text.
func hosts(body []byte) []string {
	var out []string
	for _, m := range urlForm.FindAll(body, 1000) {
		u, err := url.Parse(string(m))
		if err != nil {
			continue
		}
		h := strings.TrimRight(strings.ToLower(u.Hostname()), ".")
		if hostForm.MatchString(h) && !strings.HasSuffix(h, ".example") && !strings.HasSuffix(h, "example.com") && !slices.Contains(out, h) && len(out) < maxHosts {
			out = append(out, h)
		}
	}
	slices.Sort(out)
	return out
}

// readSkills returns the skills below the root of a file system, and the errors of those that cannot be read, by directory.
func readSkills(fsys fs.FS) (list []*Skill, faults map[string]error) {
	faults = map[string]error{}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			faults[path.Dir(name)] = err
			return nil
		case len(list)+len(faults) >= maxSkills:
			return fs.SkipAll
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || strings.Count(name, "/") >= maxDepth):
			return fs.SkipDir
		case d.Name() != "SKILL.md" || !d.Type().IsRegular():
			return nil
		}
		dir := path.Dir(name)
		s, err := readSkill(fsys, name)
		if err != nil {
			faults[dir] = err
		} else {
			list = append(list, s)
		}
		return nil
	})
	if err != nil {
		faults["."] = err
	}
	return list, faults
}

// readSkill reads and parses the SKILL.md at name.
func readSkill(fsys fs.FS, name string) (*Skill, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSkill+1))
	if err != nil {
		return nil, err
	}
	return ParseSkill(path.Dir(name), b)
}
