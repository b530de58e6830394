package check

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"github.com/caisson-dev/caisson"
)

// Limits of the files of contentRules, which are parsed to decide whether a change requires a review.
const (
	maxParsed      = 1 << 20   // maximum size of a file in bytes; changes of larger files require a review
	maxParsedTOML  = 256 << 10 // maximum size of a TOML file in bytes; TOML takes longer to parse
	maxParsedDepth = 64        // maximum number of nested objects and lists in JSON
	// Maximum number of brackets in a TOML file; the parser's memory grows with the square of the nesting depth.
	maxBrackets = 2_000
	maxLineDots = 64 // maximum number of dots in one line of TOML
)

// contentRule describes a kind of file of which tools execute some parts. A change of such a file requires a review unless it
// affects only parts that are known not to be executed.
type contentRule struct {
	names  []string // names of the files in lower case, or patterns of the form "name.*" or "*.name"
	reason string   // the beginning of the finding's message
	// compare reports in ok whether two versions of a file differ only in parts that are not executed. If they do not, part is
	// the first part of new that may be executed, or "" for the whole file. old is "" if there was no old file.
	compare func(old, new string) (part string, ok bool)
}

// dependencyKeys are the keys that the requirement of a dependency may contain if it is to be fetched from a registry.
var dependencyKeys = []string{"version", "extras", "optional", "markers", "python", "features", "default-features", "workspace"}

// contentRules lists the files of which tools execute only some parts. The lists of inert keys contain the keys whose values
// are not executed; a change of any other key requires a review.
var contentRules = []contentRule{
	{[]string{"package.json"}, "package managers and tools run what this names", keyComparer{
		decode: decodeJSON,
		inert: []string{
			"name", "version", "description", "keywords", "homepage", "bugs", "license", "licenses", "author", "contributors", "maintainers",
			"funding", "repository", "private", "engines", "os", "cpu", "libc", "files", "man", "main", "module", "browser", "types", "typings",
			"typesVersions", "exports", "imports", "type", "sideEffects", "peerDependenciesMeta", "bundleDependencies", "bundledDependencies",
		},
		requires: []string{"dependencies.*", "devDependencies.*", "peerDependencies.*", "optionalDependencies.*"},
	}.compare},
	{[]string{"composer.json"}, "package managers run what this names", keyComparer{
		decode: decodeJSON,
		inert: []string{
			"name", "description", "version", "type", "keywords", "homepage", "readme", "time", "license", "authors", "support", "funding", "suggest",
			"minimum-stability", "prefer-stable", "abandoned",
		},
		requires: []string{"require.*", "require-dev.*", "conflict.*"},
	}.compare},
	{[]string{"pyproject.toml"}, "build backends, test runners and tools run what this names", keyComparer{
		decode: decodeTOML,
		inert: []string{
			"project.name", "project.version", "project.description", "project.readme", "project.requires-python", "project.license",
			"project.license-files", "project.authors", "project.maintainers", "project.keywords", "project.classifiers", "project.urls",
			"tool.poetry.name", "tool.poetry.version", "tool.poetry.description", "tool.poetry.readme", "tool.poetry.license",
			"tool.poetry.authors", "tool.poetry.maintainers", "tool.poetry.keywords", "tool.poetry.classifiers", "tool.poetry.homepage",
			"tool.poetry.repository", "tool.poetry.documentation", "tool.poetry.urls", "tool.black", "tool.isort", "tool.ruff",
		},
		requires: []string{
			"project.dependencies", "project.optional-dependencies.*", "dependency-groups.*", "tool.poetry.dependencies.*",
			"tool.poetry.dev-dependencies.*", "tool.poetry.group.*.dependencies.*",
		},
	}.compare},
	{[]string{"cargo.toml"}, "cargo runs what this names when it builds, and editors do it", keyComparer{
		decode: decodeTOML,
		inert: []string{
			"package.name", "package.version", "package.authors", "package.edition", "package.rust-version", "package.description",
			"package.documentation", "package.readme", "package.homepage", "package.repository", "package.license", "package.license-file",
			"package.keywords", "package.categories", "package.publish", "workspace.package", "features", "lints", "badges",
		},
		requires: []string{
			"dependencies.*", "dev-dependencies.*", "build-dependencies.*", "workspace.dependencies.*", "target.*.dependencies.*",
			"target.*.dev-dependencies.*", "target.*.build-dependencies.*",
		},
	}.compare},
	{[]string{".eslintrc", ".eslintrc.json"}, "linters and editors load what this names", keyComparer{
		decode: decodeJSON,
		inert:  []string{"$schema", "env", "globals", "root", "ignorePatterns", "reportUnusedDisableDirectives"},
		rules:  []string{"rules.*"},
	}.compare},
	{[]string{".prettierrc", ".prettierrc.json"}, "formatters and editors load what this names", keyComparer{
		decode: decodeJSON,
		inert: []string{
			"$schema", "arrowParens", "bracketSameLine", "bracketSpacing", "embeddedLanguageFormatting", "endOfLine", "htmlWhitespaceSensitivity",
			"jsxSingleQuote", "objectWrap", "printWidth", "proseWrap", "quoteProps", "semi", "singleAttributePerLine", "singleQuote", "tabWidth",
			"trailingComma", "useTabs", "vueIndentScriptAndStyle",
		},
	}.compare},
	{[]string{"makefile", "gnumakefile", "bsdmakefile", "makefile.am", "makefile.in", "makefile.inc", "*.mk"},
		"make runs this", compareMakefiles},
	{[]string{"makefile.*"}, "builds run this", func(old, new string) (string, bool) { return "", old == new }},
}

// contentRulesByName returns an index of contentRules by name.
var contentRulesByName = sync.OnceValue(func() map[string]*contentRule {
	index := map[string]*contentRule{}
	for i := range contentRules {
		for _, name := range contentRules[i].names {
			index[name] = &contentRules[i]
		}
	}
	return index
})

// contentRuleFor returns the element of contentRules for the file at path, or nil.
func contentRuleFor(path string) *contentRule {
	index := contentRulesByName()
	name := nameKey(path[strings.LastIndexByte(path, '/')+1:])
	found := index[name]
	eachStem(name, func(stem string) {
		if found == nil {
			found = index[stem]
		}
	})
	return found
}

// checkContentRules requires a review of the change i if a content rule applies to the file and the change may affect what
// tools execute. text is the new content of the file. It may be called concurrently for different changes.
func (c *checker) checkContentRules(i int, text string) {
	ch := &c.changes[i]
	j := contentRuleFor(ch.Path)
	if j == nil || matchAny(c.rules.Allow, ch.Path) {
		return
	}
	part, ok := j.compareVersions(c.oldVersions(ch), text)
	switch {
	case ok:
	case part == "":
		c.add(i, checkPath, caisson.VerdictAsk, 0, "%s", j.reason)
	default:
		c.add(i, checkPath, caisson.VerdictAsk, 0, "%s: %+.80q changes", j.reason, part)
	}
}

// compareVersions compares new with each of the old texts by contentRule.compare. ok reports whether new and one of the old texts
// differ only in parts that are not executed; it is false if new cannot be compared. part names a differing part.
func (j *contentRule) compareVersions(old []string, new string) (part string, ok bool) {
	defer func() {
		if recover() != nil {
			part, ok = "", false
		}
	}()
	if len(new) > maxParsed || !utf8.ValidString(new) || strings.IndexByte(new, 0) >= 0 {
		return "", false
	}
	if len(old) == 0 {
		return j.compare("", new)
	}
	for _, o := range old {
		if len(o) > maxParsed || !utf8.ValidString(o) {
			continue
		}
		if p, ok := j.compare(o, new); ok {
			return "", true
		} else if part == "" {
			part = p
		}
	}
	return part, false
}

// oldVersions returns the old contents at the path of a change: none if the file was renamed, did not exist or is too large,
// and several if a commit with several parents changes the file.
func (c *checker) oldVersions(ch *caisson.Change) []string {
	if ch.OldPath != "" && ch.OldPath != ch.Path {
		return nil
	}
	old := c.oldContent(ch)
	if len(old) == 0 || len(old) >= int(c.rules.MaxScan) { // the old content may be truncated
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(old), "\x00"), "\x00")
}

// keyComparer compares two versions of a file that consists of keys and values, such as JSON or TOML.
type keyComparer struct {
	decode func(text string) (map[string]any, error) // parses a version of the file
	// inert are paths of keys, joined by dots, whose values are not executed; * matches any key.
	inert []string
	// requires are such paths of requirements of dependencies. A change is allowed if only versions change, but not the source.
	requires []string
	rules    []string // such paths of ESLint rules. All but the options of plugins' rules may change
}

// compare implements contentRule.compare: ok means that only parts that are not executed differ. If not, part is the path of
// the first other key that differs, or "" if new cannot be parsed.
func (k keyComparer) compare(old, new string) (part string, ok bool) {
	before := map[string]any{}
	if old != "" {
		// An old file that cannot be parsed is treated as empty, so that all keys of the new file are compared.
		if m, err := k.decode(old); err == nil {
			before = m
		}
	}
	after, err := k.decode(new)
	if err != nil {
		return "", false
	}
	return k.sameKeys(nil, before, after)
}

// sameKeys compares two versions of the table at path, a list of keys, which is nil for the whole file. ok reports whether they
// differ only in parts that are not executed; if not, part is the path of the first key that differs otherwise.
func (k keyComparer) sameKeys(path []string, before, after map[string]any) (part string, ok bool) {
	both := map[string]any{}
	maps.Copy(both, before)
	maps.Copy(both, after)
	for _, name := range slices.Sorted(maps.Keys(both)) {
		at := append(slices.Clone(path), name)
		was, had := before[name]
		is, has := after[name]
		if had == has && reflect.DeepEqual(was, is) || matchKeys(k.inert, at) == pathMatched {
			continue
		}
		required, rule := matchKeys(k.requires, at), matchKeys(k.rules, at)
		if required == pathMatched && (!has || fromRegistry(is, 0)) || rule == pathMatched && sameOptions(name, was, is) {
			continue
		}
		wasTable, a := asTable(was, had)
		isTable, b := asTable(is, has)
		if below := required == pathAbovePattern || rule == pathAbovePattern ||
			matchKeys(k.inert, at) == pathAbovePattern; below && a && b {
			if part, ok := k.sameKeys(at, wasTable, isTable); !ok {
				return part, false
			}
			continue
		}
		return strings.Join(at, "."), false
	}
	return "", true
}

// asTable returns the value v as a table; ok is false if v is of another type. A value that does not exist (there is false)
// counts as an empty table.
func asTable(v any, there bool) (map[string]any, bool) {
	if !there {
		return nil, true
	}
	m, ok := v.(map[string]any)
	return m, ok
}

// The results of matchKeys, from the weakest match to the strongest.
const (
	pathNotMatched   = iota // no pattern matches
	pathAbovePattern        // a pattern matches only paths below the path
	pathMatched             // a pattern matches the path itself or a path above it
)

// matchKeys compares at, a path of keys, with the patterns in list. It returns pathMatched if a pattern matches at or a path
// above it, otherwise pathAbovePattern if a pattern matches only paths below at, otherwise pathNotMatched.
func matchKeys(list []string, at []string) int {
	best := pathNotMatched
	for _, p := range list {
		want := strings.Split(p, ".")
		n := min(len(want), len(at))
		if !slices.EqualFunc(want[:n], at[:n], func(w, a string) bool { return w == "*" || w == a }) {
			continue
		}
		if len(want) > len(at) {
			best = max(best, pathAbovePattern)
		} else {
			best = pathMatched
		}
	}
	return best
}

// archiveName matches requirements that package managers interpret as the name of an archive in the tree.
var archiveName = regexp.MustCompile(`(?i)\.(tgz|tar(\.[a-z0-9]+)?|zip|whl|crate)\s*$`)

// fromRegistry reports whether a dependency requirement contains only versions, and no other source or package.
func fromRegistry(v any, depth int) bool {
	switch v := v.(type) {
	case bool:
		return true
	case string:
		for _, own := range []string{"workspace:", "catalog:"} { // prefixes of requirements of packages in the same repository
			v = strings.TrimPrefix(v, own)
		}
		// v is a path if it contains a slash, begins with a dot or is the name of an archive.
		return !strings.ContainsAny(v, `/\@:`) && !strings.HasPrefix(v, ".") && !archiveName.MatchString(v)
	case []any:
		return depth < 3 && !slices.ContainsFunc(v, func(e any) bool { return !fromRegistry(e, depth+1) })
	case map[string]any:
		for name, e := range v {
			if !slices.Contains(dependencyKeys, name) || depth > 2 || !fromRegistry(e, depth+1) {
				return false
			}
		}
		return true
	}
	return false
}

// sameOptions reports whether two versions of the ESLint rule name differ only in parts that are not executed: the severity
// and, unless it is a rule of a plugin, the options. The names of plugin rules contain a slash, and their options can name
// modules that are loaded. A version in which the rule does not exist is nil and has no options.
func sameOptions(name string, old, new any) bool {
	if !strings.Contains(name, "/") {
		return true
	}
	before, ok := ruleOptions(old)
	after, ok2 := ruleOptions(new)
	return ok && ok2 && slices.EqualFunc(before, after, reflect.DeepEqual)
}

// ruleOptions returns the options of an ESLint rule, which are the elements after its severity. ok is false if the severity is
// invalid.
func ruleOptions(rule any) (options []any, ok bool) {
	list, isList := rule.([]any)
	if !isList {
		list = []any{rule}
	}
	if len(list) == 0 {
		return nil, false
	}
	switch list[0] {
	case nil, "off", "warn", "error", json.Number("0"), json.Number("1"), json.Number("2"):
		return list[1:], true
	}
	return nil, false
}

// decodeJSON parses text as a JSON object. It is strict: input that parsers could interpret differently, such as a duplicate
// name, is an error.
func decodeJSON(text string) (map[string]any, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	v, err := decodeValue(dec, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errUnparsable
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errUnparsable
	}
	return m, nil
}

// errUnparsable is the error for a file that cannot be parsed within the limits.
var errUnparsable = errors.New("it is not as it should be, or too large")

// decodeValue parses the next JSON value of dec. depth is the number of objects and lists that contain it.
func decodeValue(dec *json.Decoder, depth int) (any, error) {
	t, err := dec.Token()
	if err != nil || depth > maxParsedDepth {
		return nil, errors.Join(err, errUnparsable)
	}
	switch t {
	case json.Delim('{'):
		m := map[string]any{}
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return nil, err
			}
			key, _ := name.(string)
			if _, twice := m[key]; twice {
				return nil, errUnparsable
			}
			if m[key], err = decodeValue(dec, depth+1); err != nil {
				return nil, err
			}
		}
		_, err = dec.Token()
		return m, err
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			v, err := decodeValue(dec, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = dec.Token()
		return list, err
	}
	return t, nil
}

// decodeTOML parses TOML, and returns an error if text exceeds maxParsedTOML, maxBrackets or maxLineDots: the time of the
// parser grows with the square of the number of parts of a key, and with the square of the number of nested brackets.
func decodeTOML(text string) (m map[string]any, err error) {
	if len(text) > maxParsedTOML || strings.Count(text, "[")+strings.Count(text, "{") > maxBrackets {
		return nil, errUnparsable
	}
	for line := range strings.SplitSeq(text, "\n") {
		if strings.Count(line, ".") > maxLineDots {
			return nil, errUnparsable
		}
	}
	_, err = toml.Decode(text, &m)
	return m, err
}

// compareMakefiles compares two versions of a makefile without comments and empty lines. A line is a comment if it begins with
// # and does not continue the line before. If a version defines multi-line variables or another recipe prefix, make could
// interpret a comment differently, and all lines are compared. A first line that names an interpreter is compared as well,
// because makefiles can be executed directly.
func compareMakefiles(old, new string) (part string, ok bool) {
	all := func(s string) bool { return strings.Contains(s, "define") || strings.Contains(s, "RECIPEPREFIX") }
	if all(old) || all(new) {
		return "", old == new
	}
	return "", slices.Equal(makeLines(old), makeLines(new))
}

// makeLines returns the lines of a makefile without comments and empty lines.
func makeLines(text string) (lines []string) {
	goesOn := false
	for line := range strings.SplitSeq(text, "\n") {
		part := goesOn || lines == nil && strings.HasPrefix(line, "#!")
		plain := strings.TrimRight(line, "\r")
		goesOn = strings.HasSuffix(plain, `\`)
		if !part && !goesOn && (plain == "" || plain[0] == '#') {
			continue
		}
		lines = append(lines, line)
	}
	return lines
}
