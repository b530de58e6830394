package openclaw

import (
	"cmp"
	"encoding/json"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// secretSuffixes are suffixes of the names of settings that contain secrets, in lower case.
var secretSuffixes = []string{"apikey", "token", "password", "secret", "privatekey", "signingkey", "accesskey", "webhookurl"}

// nonSecretNames are names of settings that end in one of secretSuffixes but contain no secret.
var nonSecretNames = []string{"maxtokens", "contexttokens"}

// isSecretKey reports whether a setting of this name contains a secret.
func isSecretKey(name string) bool {
	name = strings.ToLower(nonNameChars.ReplaceAllString(name, ""))
	return !slices.Contains(nonSecretNames, name) && slices.ContainsFunc(secretSuffixes, func(k string) bool { return strings.HasSuffix(name, k) })
}

// nonNameChars matches the parts of a text that cannot be in the name of a secret: all but letters and digits.
var nonNameChars = regexp.MustCompile(`[^A-Za-z0-9]+`)

// secretName returns the name of a credential that is made of these parts.
func secretName(parts ...string) string {
	s := strings.ToUpper(strings.Trim(nonNameChars.ReplaceAllString(strings.Join(parts, "_"), "_"), "_"))
	if s == "" || s[0] >= '0' && s[0] <= '9' {
		s = "OPENCLAW_" + s
	}
	return s[:min(len(s), 60)]
}

// addSecret records a secret. References to secrets stored elsewhere, and values that are too short or too long, are skipped.
func (in *importer) addSecret(name, value, from string) {
	value = strings.TrimSpace(value)
	if len(value) < 6 || len(value) > maxSecretLen || strings.HasPrefix(value, "${") || strings.HasPrefix(value, "secretref") || !utf8.ValidString(value) {
		return
	}
	if _, known := in.values[value]; known {
		return
	}
	if len(in.out.Secrets) >= maxSecrets {
		if len(in.out.Secrets) == maxSecrets {
			in.report(caisson.CheckFailed, "secrets", "there are more than can be imported", "store the others with caisson credential set")
		}
		in.values[value] = "a secret" // not imported, but redact removes the value from files
		return
	}
	for base, n := name, 2; in.names[name]; n++ {
		name = base + "_" + string(rune('A'+n%26))
		if n > 26 {
			return
		}
	}
	in.names[name], in.values[value] = true, name
	in.out.Secrets = append(in.out.Secrets, ImportedSecret{Name: name, Value: caisson.NewSecret(value), From: from})
}

// secrets finds the secrets in the configuration, in .env files and in stored logins.
func (in *importer) secrets(root map[string]any) {
	providers, _ := lookup(root, "models", "providers").(map[string]any)
	for _, p := range slices.Sorted(maps.Keys(providers)) {
		in.addSecret(secretName(p, "API_KEY"), stringOf(lookup(providers[p], "apiKey")), "openclaw.json models.providers."+p)
	}
	env, _ := lookup(root, "env").(map[string]any)
	vars, _ := lookup(env, "vars").(map[string]any)
	for _, m := range []map[string]any{vars, env} {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			in.addSecret(secretName(k), stringOf(m[k]), "openclaw.json env")
		}
	}
	entries, _ := lookup(root, "skills", "entries").(map[string]any)
	for _, s := range slices.Sorted(maps.Keys(entries)) {
		in.addSecret(secretName(s, "API_KEY"), stringOf(lookup(entries[s], "apiKey")), "openclaw.json skills.entries."+s)
		vars, _ := lookup(entries[s], "env").(map[string]any)
		for _, k := range slices.Sorted(maps.Keys(vars)) {
			in.addSecret(secretName(k), stringOf(vars[k]), "openclaw.json skills.entries."+s)
		}
	}
	in.walk("openclaw.json", nil, root)
	for _, f := range []string{".env", "workspace/.env"} {
		in.dotEnv(f)
	}
	in.logins()
}

// walk records the secrets in v, which are recognised by the names of settings. names is the path of v in the file from.
func (in *importer) walk(from string, names []string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			here := append(slices.Clone(names), k)
			if s, ok := v[k].(string); ok && isSecretKey(k) {
				in.addSecret(secretName(here[max(0, len(here)-4):]...), s, from+" "+strings.Join(here, "."))
			}
			in.walk(from, here, v[k])
		}
	case []any:
		for _, e := range v {
			in.walk(from, names, e)
		}
	}
}

// envLine matches a line of a .env file: NAME=VALUE, with or without export before it.
var envLine = regexp.MustCompile(`^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*$`)

// dotEnv imports all variables of a file as secrets, because such files usually contain secrets.
func (in *importer) dotEnv(name string) {
	b, err := readFile(in.fsys, name, maxFile)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(b)) {
		m := envLine.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if m == nil {
			continue
		}
		value := m[2]
		if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		in.addSecret(secretName(m[1]), value, name)
	}
	in.report(caisson.CheckWarning, name, "its variables were imported as secrets, and the file is not imported", "set variables that are not secret in the agent's env")
}

// logins imports the keys and tokens in agents/*/agent/auth-profiles.json.
func (in *importer) logins() {
	dirs, err := fs.Glob(in.fsys, "agents/*/agent/auth-profiles.json")
	if err != nil {
		return // cannot happen: the pattern is valid
	}
	for _, name := range dirs[:min(len(dirs), maxAgents)] {
		b, err := readFile(in.fsys, name, maxJSON5)
		if err != nil {
			in.report(caisson.CheckFailed, name, err.Error(), "store its secrets with caisson credential set")
			continue
		}
		var f struct {
			Profiles map[string]struct{ Provider, Key, Token, Access, Refresh string }
		}
		if err := json.Unmarshal(b, &f); err != nil {
			in.report(caisson.CheckFailed, name, "it has an unknown format", "store its secrets with caisson credential set")
			continue
		}
		for _, id := range slices.Sorted(maps.Keys(f.Profiles)) {
			p := f.Profiles[id]
			provider := cmp.Or(p.Provider, id)
			in.addSecret(secretName(provider, "API_KEY"), p.Key, name)
			in.addSecret(secretName(provider, "TOKEN"), p.Token, name)
			if p.Access != "" || p.Refresh != "" {
				in.addSecret(secretName(provider, "ACCESS_TOKEN"), p.Access, name)
				in.addSecret(secretName(provider, "REFRESH_TOKEN"), p.Refresh, name)
				in.report(caisson.CheckWarning, "login "+id, "it belongs to a personal account, and its token expires", "use an API key of the provider instead")
			}
		}
	}
	for _, dir := range []string{"credentials", "identity", "devices"} {
		if _, err := fs.Lstat(in.fsys, dir); err == nil {
			in.report(caisson.CheckWarning, path.Join(dir, "*"), "it pairs a machine with others, and is not imported", "")
		}
	}
}

// reportUnsupported reports the parts of a configuration that do not apply in a sandbox.
func (in *importer) reportUnsupported(root map[string]any) {
	for _, d := range []struct{ key, why, remedy string }{
		{"channels", "messages of other services do not reach a sandbox", "call the API from where the messages arrive"},
		{"cron", "a sandbox is not there between runs", "start runs by a timer of your own"},
		{"hooks", "nothing calls into a sandbox", "start runs through the API"},
		{"gateway", "the gateway is configured by Caisson", ""},
		{"browser", "there is no browser", ""},
		{"plugins", "plugins are off", "install what they did as a program, with a skill"},
		{"bindings", "there are no channels to bind", "choose the persona of each run"},
		{"mcp", "servers of the Model Context Protocol are not imported", "add them to the agent's image"},
		{"$include", "included files are not read", "put their content into openclaw.json and import again"},
	} {
		if lookup(root, d.key) != nil {
			in.report(caisson.CheckWarning, d.key, d.why, d.remedy)
		}
	}
	if lookup(root, "agents", "defaults", "sandbox") != nil {
		in.report(caisson.CheckWarning, "agents.defaults.sandbox", "all of OpenClaw runs in a sandbox of Caisson", "set the agent's limits and policy")
	}
}

// redact removes secrets from the imported files, because users also write keys into notes.
func (in *importer) redact() {
	values := slices.SortedFunc(maps.Keys(in.values), func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	for i := range in.out.Agent.Files {
		f := &in.out.Agent.Files[i]
		for _, v := range values {
			if strings.Contains(f.Data, v) {
				f.Data = strings.ReplaceAll(f.Data, v, "["+in.values[v]+"]")
				in.report(caisson.CheckWarning, f.Path, "it contained the secret "+in.values[v]+", which was removed", "")
			}
		}
	}
}
