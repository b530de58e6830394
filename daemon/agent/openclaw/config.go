package openclaw

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// A Setup contains the values from which [Config] makes the configuration of OpenClaw.
type Setup struct {
	Agent   *caisson.Agent  // agent that OpenClaw is configured for
	Models  []caisson.Model // models that the run may use, beginning with the model of the run; at least one
	Workdir string          // path of the workspace; "" means that of the agent, or /workspace
	Home    string          // replaces [Home] in tests; "" means [Home]
	Port    int             // port of OpenClaw's gateway; 0 means [Port]
	BaseURL string          // URL of the model gateway; "" means its URL in a sandbox
}

// Maximum numbers of models and personas in a Setup, and maximum size of a persona's instructions.
const (
	maxModels       = 200      // maximum number of models in a Setup
	maxPersonas     = 50       // maximum number of personas in a Setup
	maxInstructions = 64 << 10 // bytes of the instructions of one persona
)

// Limits of a model for which none are configured.
const (
	defaultContext = 128_000 // tokens of the context window
	defaultOutput  = 8192    // maximum tokens of one answer of a model
)

// Config returns the configuration files of OpenClaw. They are written after the agent's files and include the content of the
// agent's AGENTS.md and SOUL.md. The result is deterministic: equal Setups give equal bytes, so that a caller can compare them
// with the files in a snapshot. Errors are Invalid.
func Config(s Setup) ([]caisson.SeedFile, error) {
	s.Workdir = cmp.Or(s.Workdir, s.Agent.Workdir, "/workspace")
	s.Home = cmp.Or(s.Home, Home)
	if err := s.check(); err != nil {
		return nil, err
	}
	allow, deny, err := resolveTools(s.Agent.Tools.Allow, s.Agent.Tools.Deny)
	if err != nil {
		return nil, err
	}
	c := baseConfig(s)
	c.Tools.Allow, c.Tools.Deny = allow, deny
	c.Models = modelsConfig(s)
	c.Agents.Defaults.Model.Primary = Provider + "/" + s.Models[0].Alias
	c.Agents.Entries = map[string]entry{}
	personas := append([]caisson.Persona{{ID: mainAgent}}, s.Agent.Personas...)
	var files []caisson.SeedFile
	for i, p := range personas {
		e, err := s.entry(p)
		if err != nil {
			return nil, fmt.Errorf("personas[%d]: %w", i-1, err)
		}
		c.Agents.Entries[p.ID] = e
		files = append(files, s.instructions(p)...)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(c); err != nil {
		return nil, err
	}
	return append(files, caisson.SeedFile{Path: path.Join(s.Home, "openclaw.json"), Mode: 0o600, Data: b.String()}), nil
}

// check returns an Invalid error if s cannot be configured.
func (s *Setup) check() error {
	if len(s.Models) == 0 {
		return caisson.Invalidf("models", "OpenClaw needs at least one model; grant one to the agent")
	}
	if len(s.Models) > maxModels {
		return caisson.Invalidf("models", "%d models are more than %d; name those that the agent needs in its models", len(s.Models), maxModels)
	}
	if len(s.Agent.Personas) > maxPersonas {
		return caisson.Invalidf("personas", "%d personas are more than %d", len(s.Agent.Personas), maxPersonas)
	}
	if !path.IsAbs(s.Workdir) || strings.ContainsAny(s.Workdir, "\x00\n") {
		return caisson.Invalidf("workdir", "%q is not an absolute path", truncate(s.Workdir))
	}
	seen := map[string]bool{mainAgent: true}
	for i, p := range s.Agent.Personas {
		field := fmt.Sprintf("personas[%d]", i)
		switch fault := personaFault(p.ID); {
		case fault != "":
			return caisson.Invalidf(field+".id", "%q cannot be a persona's name: %s", truncate(p.ID), fault)
		case seen[p.ID]:
			return caisson.Invalidf(field+".id", "%s occurs twice; main always exists", p.ID)
		case len(p.Instructions) > maxInstructions || !utf8.ValidString(p.Instructions):
			return caisson.Invalidf(field+".instructions", "it must be text of at most %d bytes", maxInstructions)
		}
		seen[p.ID] = true
	}
	return nil
}

// personaFault returns the reason why id is not a valid persona id, or "" if it is valid. The id becomes part of paths
// and of OpenClaw's keys of conversations.
func personaFault(id string) string {
	if id == "" || len(id) > 63 {
		return "it must have 1 to 63 characters"
	}
	for i, r := range id {
		if (r < 'a' || r > 'z') && (i == 0 || (r < '0' || r > '9') && r != '-') {
			return "it must be of a-z, 0-9 and -, and begin with a letter"
		}
	}
	return ""
}

// entry returns OpenClaw's configuration of a persona.
func (s *Setup) entry(p caisson.Persona) (entry, error) {
	e := entry{Workspace: s.agentDir(p.ID), Cwd: s.Workdir}
	if p.Model != "" {
		found := false
		for _, m := range s.Models {
			found = found || m.Alias == p.Model
		}
		if found { // a persona whose model is not in s.Models uses the model of the run
			e.Model = &modelChoice{Primary: Provider + "/" + p.Model}
		}
	}
	if len(p.Deny) > 0 {
		_, deny, err := resolveTools(s.Agent.Tools.Allow, p.Deny)
		if err != nil {
			return entry{}, err
		}
		e.Tools = &toolRule{Deny: deny}
	}
	return e, nil
}

// agentDir returns the path of the directory with the files of an agent of OpenClaw.
func (s *Setup) agentDir(id string) string { return path.Join(s.Home, "agents", id) }

// instructions returns the files that OpenClaw adds to the beginning of a persona's conversations.
func (s *Setup) instructions(p caisson.Persona) []caisson.SeedFile {
	var b strings.Builder
	fmt.Fprintf(&b, "# Where you are\n\nYou work in a sandbox. The project is in %s; commands and relative paths are there. ", s.Workdir)
	b.WriteString("If it has an AGENTS.md, read that before you change anything.\n\n")
	b.WriteString("Nobody reads along while you work and nobody can be asked: decide, do, and end with a short account of what you did. ")
	b.WriteString("There are no keys here, and none are needed to use the model. ")
	b.WriteString("Network addresses that do not answer are not allowed; do not try to get around that, say what you would need.\n")
	dir := s.agentDir(p.ID)
	if own := s.file(dir + "/AGENTS.md"); own != "" {
		b.WriteString("\n" + own)
	}
	soul := cmp.Or(p.Instructions, s.file(dir+"/SOUL.md"), "You are a careful and direct assistant. Prefer doing to announcing.")
	return []caisson.SeedFile{{Path: dir + "/AGENTS.md", Data: b.String()}, {Path: dir + "/SOUL.md", Data: strings.TrimRight(soul, "\n") + "\n"}}
}

// file returns the content of the agent's file at the path name, or "". The files of Config are written later and replace it.
func (s *Setup) file(name string) string {
	for _, f := range s.Agent.Files {
		if f.Path == name {
			return f.Data
		}
	}
	return ""
}

// modelsConfig returns OpenClaw's configuration of models: the model gateway, as the only provider, with all models.
func modelsConfig(s Setup) models {
	m := models{Mode: "replace", CatalogRefresh: enabled{}, Providers: map[string]provider{}}
	p := provider{BaseURL: cmp.Or(s.BaseURL, modelsURL), APIKey: dummyKey, API: "openai-completions", Headers: map[string]string{
		// A connection that was open when a sandbox was paused or forked is broken afterwards, and OpenClaw would wait for an
		// answer on it for half a minute.
		"Connection": "close",
	}}
	seen := map[string]bool{}
	for _, d := range s.Models {
		if seen[d.Alias] {
			continue
		}
		seen[d.Alias] = true
		window := cmp.Or(d.Context, defaultContext)
		p.Models = append(p.Models, model{
			ID: d.Alias, Name: d.Alias, Input: []string{"text", "image"}, ContextWindow: window, MaxTokens: min(cmp.Or(d.Output, defaultOutput), window),
		})
	}
	for _, window := range substituteWindows {
		p.Models = append(p.Models, model{
			ID: substituteAlias(window), Name: "the run's model", Input: []string{"text", "image"}, ContextWindow: window, MaxTokens: min(defaultOutput, window/2),
		})
	}
	m.Providers[Provider] = p
	return m
}

// substituteWindows contains the context windows, in tokens, of the substitute models. Every configuration contains all
// substitute models. A run uses one of them if its model was added after the configuration was written.
var substituteWindows = []int64{8_000, 16_000, 32_000, 64_000, 128_000, 200_000, 400_000, 1_000_000}

// substituteAlias returns the alias of the substitute model whose context window has this size in tokens. The gateway has no
// model of that alias, and answers with the model of the run.
func substituteAlias(window int64) string { return fmt.Sprintf("caisson-context-%d", window) }

// SubstituteModel returns the alias of the substitute model for m, which a run uses if its configuration was written before m was
// added: the substitute with the largest context window that is not larger than that of m. It also returns the context window
// of m.
func SubstituteModel(m caisson.Model) (alias string, window int64) {
	window = cmp.Or(m.Context, defaultContext)
	i, found := slices.BinarySearch(substituteWindows, window)
	if !found {
		i = max(i-1, 0)
	}
	return substituteAlias(substituteWindows[i]), window
}

// truncate shortens a text that is quoted in an error to 80 bytes.
func truncate(s string) string {
	if len(s) > 80 {
		return s[:80]
	}
	return s
}
