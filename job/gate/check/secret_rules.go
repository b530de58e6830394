package check

import (
	_ "embed"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"
)

// secretRulesText is the unmodified rule set of gitleaks; see docs/decisions/0008-gate-libraries.md.
//
//go:embed secret_rules.toml
var secretRulesText string

// genericRule is the id of the rule that finds secrets by the words around them, and not by their form. As in gitleaks, it is
// the only rule that ignores some files because of their paths, such as lock files. With all other rules, the name of a file
// cannot hide a token in it.
const genericRule = "generic-api-key"

// privateKeyRule is the id of the rule that finds private keys, which are longer than other secrets.
const privateKeyRule = "private-key"

// secretAllowList determines which matches of rules are not secrets. Its exported fields are those of the rule set of gitleaks.
type secretAllowList struct {
	Description string   // for readers of the rule set
	Condition   string   // "AND" if all criteria must be met; otherwise Regexes or StopWords are enough
	Paths       []string // expressions for paths of files
	RegexTarget string   // what Regexes are matched with: "match", "line" or, otherwise, the secret
	Regexes     []string // expressions for texts that are not secrets
	StopWords   []string `toml:"stopwords"` // words that secrets do not contain

	paths, regexes func() *regexp.Regexp // Paths and Regexes, compiled on first use
	stopWordFinder *wordFinder           // finds the words in StopWords
}

// A SecretRule is one rule that finds possible secrets. Its fields up to Allowlists are those of the rule set of gitleaks. Its
// regular expressions are compiled on first use.
type SecretRule struct {
	ID          string             `toml:"id"` // unique name of the rule
	Description string             // description of the secrets that the rule finds
	Regex       string             // expression that matches a secret and the text around it; "" if only Path is matched
	Path        string             // expression that the path of the file must match; "" for all paths
	SecretGroup int                // number of the group of Regex that contains the secret; 0 for the first one that has matched
	Entropy     float64            // a secret's Shannon entropy, in bits per character, must be greater; 0 for any
	Keywords    []string           // words of which a text must contain one to be searched
	Allowlists  []*secretAllowList // matches that are not secrets

	regex, path func() *regexp.Regexp // Regex and Path, compiled on first use
	// reach is the maximum distance, in bytes, from the end of a keyword at which a match can begin or end; 0 means that a
	// match can be anywhere.
	reach int
	// Assigned means that a match has one of the keywords before an assignment operator.
	Assigned bool
	before   int // maximum distance, in bytes, from the beginning of a match to the end of the keyword; set only if Assigned is
}

// Parts of the expressions of most rules. Such an expression matches a name that contains a keyword, an assignment operator, and
// a value. It begins with nameExpr, the keywords, and assignExpr, which matches the rest of the name and the operator.
const (
	nameExpr   = `(?i)[\w.-]{0,50}?` // matches the beginning of a name, before the keyword
	assignExpr = `(?:[ \t\w.-]{0,20})[\s'"]{0,3}(?:=|>|:{1,3}=|\|\||:|=>|\?=|,)`
)

// assignment reports whether the text after a keyword that ends at offset at can match assignExpr and, if value is greater than
// 0, can be followed by a value of at least value bytes. It is much faster than a regular expression and rejects most words of
// ordinary text.
func assignment(text string, at, value int) bool {
	const (
		operators = "=>:|?,"
		filler    = "'\" \t\n\r\f\v"
		longest   = 64
	)
	i := at
	for i < min(at+longest, len(text)) && (wordByte(text[i]) || strings.IndexByte(filler, text[i]) >= 0) {
		i++
	}
	if i == len(text) || strings.IndexByte(operators, text[i]) < 0 {
		return false
	}
	n := 0
	for end := min(i+longest, len(text)); i < end && strings.IndexByte(operators+filler+"`", text[i]) >= 0; i++ {
		if text[i] == '=' {
			n++ // counts the = as a byte of the value, because it may be one
		}
	}
	for i < len(text) && n < value && (wordByte(text[i]) || strings.IndexByte("=+/", text[i]) >= 0) {
		i++
		n++
	}
	return n >= value
}

// wordByte reports whether b can be a part of a name or of an unquoted value.
func wordByte(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == '_' || b == '.' || b == '-' || b >= 0x80
}

// SecretRules is the set of all rules that find possible secrets. It is safe for concurrent use.
type SecretRules struct {
	Title       string           // for readers of the rule set
	Description string           // for readers of the rule set
	MinVersion  string           // version of gitleaks that the rule set needs
	Allowlist   *secretAllowList // applies to all rules
	Rules       []*SecretRule    // the rules, in the order of the rule set

	keywords        *wordFinder // finds the keywords of all rules, in lower case
	byWord          [][]int     // indexes in Rules of the rules that have a keyword, by the index of the keyword
	withoutKeywords []int       // indexes in Rules of the rules without keywords, which are applied to every text
}

// LoadSecretRules returns the rules, which it parses once per process. Parsing takes some milliseconds and megabytes, so only
// jobs that search for secrets call it.
var LoadSecretRules = sync.OnceValues(func() (*SecretRules, error) {
	var all SecretRules
	meta, err := toml.Decode(secretRulesText, &all)
	if err != nil {
		return nil, fmt.Errorf("rules for secrets: %w", err)
	}
	if left := meta.Undecoded(); len(left) > 0 {
		return nil, fmt.Errorf("rules for secrets: %v means nothing here", left[0])
	}
	if all.Allowlist == nil {
		all.Allowlist = &secretAllowList{}
	}
	if err := all.Allowlist.prepare(); err != nil {
		return nil, err
	}
	index := map[string]int{}
	var list []string
	for i, r := range all.Rules {
		if err := r.prepare(); err != nil {
			return nil, fmt.Errorf("rule %s: %w", r.ID, err)
		}
		if len(r.Keywords) == 0 && r.Regex != "" {
			all.withoutKeywords = append(all.withoutKeywords, i)
		}
		for _, k := range r.Keywords {
			k = strings.ToLower(k)
			n, ok := index[k]
			if !ok {
				n = len(list)
				index[k] = n
				list = append(list, k)
				all.byWord = append(all.byWord, nil)
			}
			all.byWord[n] = append(all.byWord[n], i)
		}
	}
	all.keywords = newWords(list)
	return &all, nil
})

// lazyRegexp returns a function that compiles the alternation of exprs on its first call. The function returns nil if all are "".
func lazyRegexp(exprs ...string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp {
		if len(exprs) == 0 || exprs[0] == "" {
			return nil
		}
		// MustCompile cannot panic, because prepare has checked the syntax.
		return regexp.MustCompile("(?:" + strings.Join(exprs, ")|(?:") + ")")
	})
}

// prepare checks the expressions of the allow list and sets its unexported fields.
func (l *secretAllowList) prepare() error {
	for _, expr := range slices.Concat(l.Paths, l.Regexes) {
		if _, err := syntax.Parse(expr, syntax.Perl); err != nil {
			return err
		}
	}
	l.paths, l.regexes = lazyRegexp(l.Paths...), lazyRegexp(l.Regexes...)
	l.stopWordFinder = newWords(l.StopWords)
	return nil
}

// prepare checks the expressions of the rule and sets the fields after Allowlists.
func (r *SecretRule) prepare() error {
	if _, err := syntax.Parse(r.Path, syntax.Perl); err != nil {
		return err
	}
	re, err := syntax.Parse(r.Regex, syntax.Perl)
	if err != nil {
		return err
	}
	r.regex, r.path = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(r.Regex) }), lazyRegexp(r.Path)
	if mustContain(re, r.Keywords) {
		r.reach = maxReach
		if r.ID == privateKeyRule {
			r.reach = maxKeyReach
		}
		if n := longest(re); n >= 0 {
			r.reach = min(n, r.reach)
		}
	}
	if rest, ok := strings.CutPrefix(r.Regex, nameExpr); ok && r.reach > 0 && re.Op == syntax.OpConcat {
		name, _, ok := strings.Cut(rest, assignExpr)
		if group, err := syntax.Parse("(?i)"+name, syntax.Perl); ok && err == nil && mustContain(group, r.Keywords) && longest(group) >= 0 {
			r.Assigned, r.before = true, 4*50+longest(group)
		}
	}
	for _, l := range r.Allowlists {
		if err := l.prepare(); err != nil {
			return err
		}
	}
	return nil
}

// longest returns the maximum length, in bytes, of a match of re, or -1 if there is no maximum.
func longest(re *syntax.Regexp) int {
	sum, most := 0, 0
	for _, sub := range re.Sub {
		n := longest(sub)
		if n < 0 {
			return -1
		}
		sum, most = sum+n, max(most, n)
	}
	switch re.Op {
	case syntax.OpLiteral:
		return 4 * len(re.Rune)
	case syntax.OpCharClass:
		if n := len(re.Rune); n > 0 && re.Rune[n-1] < 0x80 {
			return 1
		}
		return 4
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return 4
	case syntax.OpStar, syntax.OpPlus:
		if most == 0 {
			return 0
		}
		return -1
	case syntax.OpRepeat:
		if re.Max < 0 && most > 0 {
			return -1
		}
		return max(re.Max, 0) * most
	case syntax.OpAlternate:
		return most
	}
	return sum
}

// mustContain reports whether every match of re contains one of the keywords. It returns false if that is not certain.
func mustContain(re *syntax.Regexp, keywords []string) bool {
	if len(keywords) == 0 {
		return false
	}
	exact, must := literals(re, keywords)
	return must || exact != nil && containAll(exact, keywords)
}

// containAll reports whether each of texts contains one of the keywords.
func containAll(texts, keywords []string) bool {
	for _, s := range texts {
		if !slices.ContainsFunc(keywords, func(k string) bool { return strings.Contains(s, strings.ToLower(k)) }) {
			return false
		}
	}
	return true
}

// maxLiterals is the maximum number of literal texts that are collected from the regular expression of a secret rule.
const maxLiterals = 64

// literals returns in exact all texts that re matches, in lower case, or nil if there are more than maxLiterals or they are
// unknown. must reports whether every match is known to contain a keyword.
func literals(re *syntax.Regexp, keywords []string) (exact []string, must bool) {
	switch re.Op {
	case syntax.OpLiteral:
		exact = []string{strings.ToLower(string(re.Rune))}
		return exact, containAll(exact, keywords)
	case syntax.OpCharClass:
		for i := 0; i+1 < len(re.Rune); i += 2 {
			if len(exact)+int(re.Rune[i+1]-re.Rune[i])+1 > maxLiterals {
				return nil, false
			}
			for c := re.Rune[i]; c <= re.Rune[i+1]; c++ {
				exact = append(exact, strings.ToLower(string(c)))
			}
		}
		return exact, false
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText, syntax.OpWordBoundary,
		syntax.OpNoWordBoundary:
		return []string{""}, false
	case syntax.OpCapture:
		return literals(re.Sub[0], keywords)
	case syntax.OpQuest:
		if exact, _ = literals(re.Sub[0], keywords); exact != nil {
			exact = append(slices.Clone(exact), "")
		}
		return exact, false
	case syntax.OpPlus:
		_, must = literals(re.Sub[0], keywords)
		return nil, must
	case syntax.OpRepeat:
		_, must = literals(re.Sub[0], keywords)
		return nil, must && re.Min > 0
	case syntax.OpAlternate:
		must = true
		exact = []string{}
		for _, sub := range re.Sub {
			e, m := literals(sub, keywords)
			must = must && (m || e != nil && containAll(e, keywords))
			if e == nil || exact == nil || len(exact)+len(e) > maxLiterals {
				exact = nil
				continue
			}
			exact = append(exact, e...)
		}
		return exact, must
	case syntax.OpConcat:
		return concat(re.Sub, keywords)
	}
	return nil, false
}

// concat returns in exact all texts that the concatenation of subs matches, or nil if they are too many or unknown, and in must
// whether every match is known to contain a keyword. After an expression whose texts are unknown, it collects texts again from
// the next expression on, to find a keyword in them.
func concat(subs []*syntax.Regexp, keywords []string) (exact []string, must bool) {
	run, whole := []string{""}, true
	for _, sub := range subs {
		e, m := literals(sub, keywords)
		must = must || m
		if e == nil || len(e)*len(run) > maxLiterals {
			run, whole = []string{""}, false
			if e != nil {
				run = e
			}
		} else {
			var longer []string
			for _, a := range run {
				for _, b := range e {
					longer = append(longer, a+b)
				}
			}
			run = longer
		}
		must = must || containAll(run, keywords)
	}
	if !whole {
		return nil, must
	}
	return run, must
}
