package openclaw

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// Limits on an import.
const (
	maxFiles     = 500       // maximum number of files that are imported
	maxFile      = 256 << 10 // largest imported file in bytes
	maxTotal     = 4 << 20   // bytes of all files together
	maxSecrets   = 200       // maximum number of secrets that are imported
	maxAgents    = 50        // agents besides main, which become personas; also the maximum of files with stored logins
	maxSecretLen = 16 << 10  // longest secret in bytes
)

// An ImportResult is the result of importing an existing installation of OpenClaw.
type ImportResult struct {
	Agent   caisson.Agent        // the imported agent, with its personas, models, tools, skills and files
	Models  []caisson.Model      // models that must be added to the configuration of the model gateway
	Secrets []ImportedSecret     // secrets that were found, for credentials
	Report  []caisson.AgentCheck // settings and files that were not imported, and why
}

// An ImportedSecret is a secret that was found in the installation. The other fields of an ImportResult do not contain it.
type ImportedSecret struct {
	Name  string // name for the credential
	Value caisson.Secret
	From  string // file and setting that contained it
}

// Import reads a directory like ~/.openclaw, which is the root of fsys. It skips files that are symbolic links; fsys must
// ensure that links in the paths of files do not lead out of the directory, as an [os.Root] does. It executes nothing. Returns an
// Invalid error if the configuration cannot be read.
func Import(fsys fs.FS) (*ImportResult, error) {
	in := &importer{fsys: fsys, values: map[string]string{}, names: map[string]bool{}}
	b, err := readFile(fsys, "openclaw.json", maxJSON5)
	if err != nil {
		return nil, caisson.Invalidf("openclaw.json", "%s", safetext.Escape(err.Error()))
	}
	v, err := parseJSON5(b)
	if err != nil {
		return nil, caisson.Invalidf("openclaw.json", "%s", safetext.Escape(err.Error()))
	}
	root, ok := v.(map[string]any)
	if !ok {
		return nil, caisson.Invalidf("openclaw.json", "it is no object")
	}
	in.out.Agent = caisson.Agent{ID: "openclaw-imported", Name: "OpenClaw, imported", Driver: caisson.DriverOpenClaw, Version: Version, Memory: true}
	in.secrets(root)
	in.models(root)
	in.agents(root)
	in.tools(root)
	in.skills()
	in.reportUnsupported(root)
	in.redact()
	return &in.out, nil
}

// An importer is the state of one call of Import.
type importer struct {
	fsys   fs.FS             // OpenClaw's directory, which is imported
	out    ImportResult      // result of the import so far
	values map[string]string // names of the secrets that were found, by the value of the secret
	names  map[string]bool   // names of the imported secrets
	total  int               // total size of the imported files in bytes
}

// report adds a result to the report of the import.
func (in *importer) report(status, subject, detail, remedy string) {
	in.out.Report = append(in.out.Report, caisson.AgentCheck{
		Subject: safetext.Escape(truncate(subject)), Status: status, Detail: safetext.Escape(truncate(detail)), Remedy: remedy,
	})
}

// readFile reads a regular file of at most limit bytes.
func readFile(fsys fs.FS, name string, limit int64) ([]byte, error) {
	info, err := fs.Lstat(fsys, name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("%s is not a file of at most %d bytes", name, limit)
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return b, err
}

// lookup returns the value that the names lead to in v, each name being a key of a nested object, or nil if there is none.
func lookup(v any, names ...string) any {
	for _, n := range names {
		m, _ := v.(map[string]any)
		v = m[n]
	}
	return v
}

// stringOf returns v if it is a string, and otherwise "".
func stringOf(v any) string { s, _ := v.(string); return s }

// stringsOf returns the non-empty strings in v if it is a list, and otherwise nil.
func stringsOf(v any) []string {
	var out []string
	list, _ := v.([]any)
	for _, e := range list {
		if s := stringOf(e); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// modelRef returns the name of a model in a setting, which is a string, or an object with the name in the field primary.
func modelRef(v any) string { return cmp.Or(stringOf(v), stringOf(lookup(v, "primary"))) }

// nonAliasChars matches characters that are not allowed in the alias of a model.
var nonAliasChars = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// alias returns the alias for OpenClaw's name of a model, and adds a new model to the result; "" if ref cannot be imported.
func (in *importer) alias(ref string) string {
	provider, upstream, ok := strings.Cut(ref, "/")
	if !ok || upstream == "" || len(ref) > 200 {
		return ""
	}
	a := strings.Trim(nonAliasChars.ReplaceAllString(path.Base(upstream), "-"), "-.")
	for _, m := range in.out.Models {
		if m.Provider == provider && m.Upstream == upstream {
			return m.Alias
		}
		if m.Alias == a {
			a = strings.Trim(nonAliasChars.ReplaceAllString(ref, "-"), "-.")
		}
	}
	if a == "" || len(in.out.Models) >= maxModels {
		return ""
	}
	in.out.Models = append(in.out.Models, caisson.Model{Alias: a, Provider: safetext.Escape(provider), Upstream: safetext.Escape(upstream)})
	return a
}

// models imports the models that agents use, with their limits if the configuration has them.
func (in *importer) models(root map[string]any) {
	if a := in.alias(modelRef(lookup(root, "agents", "defaults", "model"))); a != "" {
		in.out.Agent.Models = append(in.out.Agent.Models, a)
	}
	providers, _ := lookup(root, "models", "providers").(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(providers)) {
		list, _ := lookup(providers[name], "models").([]any)
		for _, m := range list {
			a := in.alias(name + "/" + stringOf(lookup(m, "id")))
			i := slices.IndexFunc(in.out.Models, func(have caisson.Model) bool { return have.Alias == a })
			if i < 0 {
				continue
			}
			in.out.Models[i].Context, in.out.Models[i].Output = number(lookup(m, "contextWindow")), number(lookup(m, "maxTokens"))
			if !slices.Contains(in.out.Agent.Models, a) {
				in.out.Agent.Models = append(in.out.Agent.Models, a)
			}
		}
	}
}

// number returns the number v, or 0 if v is not a number from 1 to 1e9.
func number(v any) int64 {
	n, _ := v.(float64)
	if n < 1 || n > 1e9 {
		return 0
	}
	return int64(n)
}

// agents imports OpenClaw's agents: the default one becomes main, the others personas.
func (in *importer) agents(root map[string]any) {
	entries := map[string]any{}
	if m, ok := lookup(root, "agents", "entries").(map[string]any); ok {
		maps.Copy(entries, m)
	}
	list, _ := lookup(root, "agents", "list").([]any)
	for _, e := range list {
		if id := stringOf(lookup(e, "id")); id != "" {
			entries[id] = e
		}
	}
	in.instructions(mainAgent, cmp.Or(stringOf(lookup(entries[mainAgent], "workspace")), stringOf(lookup(root, "agents", "defaults", "workspace")), "workspace"))
	for _, id := range slices.Sorted(maps.Keys(entries)) {
		e := entries[id]
		if id == mainAgent {
			if a := in.alias(modelRef(lookup(e, "model"))); a != "" {
				in.out.Agent.Models = slices.Insert(slices.DeleteFunc(in.out.Agent.Models, func(s string) bool { return s == a }), 0, a)
			}
			continue
		}
		if fault := personaFault(id); fault != "" || len(in.out.Agent.Personas) >= maxAgents {
			in.report(caisson.CheckWarning, "agent "+id, "it is not imported: "+cmp.Or(fault, "there are too many"), "rename it and import again")
			continue
		}
		p := caisson.Persona{ID: id, Model: in.alias(modelRef(lookup(e, "model")))}
		for _, d := range stringsOf(lookup(e, "tools", "deny")) {
			if toolFault(toolName(d)) == "" {
				p.Deny = append(p.Deny, toolName(d))
			}
		}
		if p.Model != "" && !slices.Contains(in.out.Agent.Models, p.Model) {
			in.out.Agent.Models = append(in.out.Agent.Models, p.Model)
		}
		in.out.Agent.Personas = append(in.out.Agent.Personas, p)
		in.instructions(id, cmp.Or(stringOf(lookup(e, "workspace")), "workspace-"+id))
	}
}

// tools imports the denied tools. The allowed tools are not imported: a list for a personal machine is too wide, or names tools
// that a sandbox lacks.
func (in *importer) tools(root map[string]any) {
	for _, d := range stringsOf(lookup(root, "tools", "deny")) {
		if toolFault(toolName(d)) == "" {
			in.out.Agent.Tools.Deny = append(in.out.Agent.Tools.Deny, toolName(d))
		}
	}
	if lookup(root, "tools", "allow") != nil || lookup(root, "tools", "profile") != nil {
		in.report(caisson.CheckWarning, "tools", "the list of allowed tools is not imported", "set tools.allow of the agent if it needs more than the default tools")
	}
}

// localDir returns the path within OpenClaw's own directory of dir, a directory that a setting names, or an error if dir is
// outside.
func localDir(dir string) (string, error) {
	dir = strings.TrimRight(strings.ReplaceAll(dir, `\`, "/"), "/")
	if i := strings.LastIndex(dir, "/.openclaw/"); i >= 0 {
		dir = dir[i+len("/.openclaw/"):]
	}
	if !fs.ValidPath(dir) {
		return "", errors.New("it is outside of OpenClaw's own directory")
	}
	return dir, nil
}

// workspaceFiles are the names of the files that OpenClaw adds to the beginning of a conversation, including its memory.
var workspaceFiles = []string{"AGENTS.md", "SOUL.md", "IDENTITY.md", "USER.md", "TOOLS.md", "MEMORY.md"}

// instructions imports the files with an agent's instructions.
func (in *importer) instructions(id, workspace string) {
	dir, err := localDir(workspace)
	if err != nil {
		in.report(caisson.CheckWarning, "workspace of "+id, err.Error(), "import that directory's AGENTS.md and SOUL.md by hand")
		return
	}
	for _, name := range workspaceFiles {
		in.file(path.Join(dir, name), path.Join(Home, "agents", id, name))
	}
}

// file imports the text file from, if it exists and is not too large, as the agent's file at the path to.
func (in *importer) file(from, to string) {
	b, err := readFile(in.fsys, from, maxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		in.report(caisson.CheckWarning, from, err.Error(), "copy it by hand if it is needed")
	case !utf8.Valid(b):
		in.report(caisson.CheckWarning, from, "it is no text", "add it to the agent's image if it is needed")
	case len(in.out.Agent.Files) >= maxFiles || in.total+len(b) > maxTotal:
		in.report(caisson.CheckWarning, from, "there is too much to take over", "add it to the agent's image if it is needed")
	default:
		in.total += len(b)
		in.out.Agent.Files = append(in.out.Agent.Files, caisson.SeedFile{Path: to, Data: string(b)})
	}
}

// skills imports the skills of the installation.
func (in *importer) skills() {
	to := path.Join(Home, "skills")
	for _, dir := range []string{"skills", "workspace/skills"} {
		list, faults := subSkills(in.fsys, dir)
		for _, d := range slices.Sorted(maps.Keys(faults)) {
			in.report(caisson.CheckFailed, "skill "+d, faults[d].Error(), "correct it, then import again")
		}
		for _, s := range list {
			if !slices.Contains(in.out.Agent.Skills, to) {
				in.out.Agent.Skills = append(in.out.Agent.Skills, to)
			}
			from := path.Join(dir, s.Dir)
			err := fs.WalkDir(in.fsys, from, func(name string, d fs.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() && !strings.HasPrefix(d.Name(), ".env") {
					in.file(name, path.Join(to, path.Base(s.Dir), strings.TrimPrefix(name, from+"/")))
				}
				return nil
			})
			if err != nil {
				in.report(caisson.CheckFailed, "skill "+s.Name, err.Error(), "copy it by hand")
			}
		}
	}
}

// subSkills returns the skills below the directory dir of fsys, and the errors of those that cannot be read, by directory.
func subSkills(fsys fs.FS, dir string) ([]*Skill, map[string]error) {
	if info, err := fs.Lstat(fsys, dir); err != nil || !info.IsDir() {
		return nil, nil
	}
	sub, err := fs.Sub(fsys, dir)
	if err != nil {
		return nil, map[string]error{dir: err}
	}
	return readSkills(sub)
}
