package check

import (
	"cmp"
	"context"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
)

// Limits of the search for secrets in one file. Most rules are compared only with the text near their keywords.
const (
	maxReach    = 4 << 10  // maximum distance, in bytes, from a keyword of a rule to the beginning and the end of a match
	maxKeyReach = 32 << 10 // the same distance for the rule that finds private keys, which are longer than other secrets
	// maxPiece is the maximum number of bytes that a regular expression searches at once. Before each piece, the search checks
	// whether its context was canceled.
	maxPiece      = 128 << 10
	maxSecrets    = 10      // maximum number of secrets that are reported for one file
	secretContext = 2 << 10 // maximum number of bytes of a line before and after a match that allow lists are matched against
	genericValue  = 10      // minimum length in bytes of a secret that the generic rule finds
	// edgeBytes is the number of bytes that are searched before and after the longest possible match, for the characters around
	// a match that a rule checks.
	edgeBytes = 8
)

// A secret is a possible secret that a search has found in a file.
type secret struct {
	Rule, description string // id and description of the rule that has matched
	text              string // the secret itself; empty if a rule matched the path of the file
	Line              int    // number of the line, from 1; 0 if a rule matched the path of the file
}

// span is a part of a text, from the byte offset start up to the byte offset end.
type span struct{ start, end int }

// find returns the possible secrets in a file, at most maxSecrets. No comment in the text can exclude a match. find returns the
// error of ctx if ctx is canceled; for any text, it checks ctx at least once a second.
func (all *SecretRules) find(ctx context.Context, path, text string) ([]secret, error) {
	return all.FindWhere(ctx, path, text, func(*SecretRule) bool { return true })
}

// FindWhere returns the possible secrets in a file, at most maxSecrets, like find, but only those of the rules for which use
// returns true.
func (all *SecretRules) FindWhere(ctx context.Context, path, text string, use func(*SecretRule) bool) ([]secret, error) {
	var out []secret
	for _, r := range all.Rules {
		if use(r) && r.Regex == "" && r.Path != "" && r.path().MatchString(path) {
			out = append(out, secret{Rule: r.ID, description: r.Description})
		}
	}
	where := all.searchSpans(text)
	order := slices.Collect(maps.Keys(where))
	generic := func(i int) int {
		if all.Rules[i].ID == genericRule {
			return 1
		}
		return 0
	}
	// The generic rule comes last, because it does not report a line in which another rule has found a secret.
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(generic(a)-generic(b), a-b) })
	for _, i := range order {
		r := all.Rules[i]
		if !use(r) || r.Path != "" && !r.path().MatchString(path) || r.ID == genericRule && matches(all.Allowlist.paths, path) {
			continue
		}
		err := r.search(ctx, text, where[i], func(m span) bool {
			s, ok := all.judge(r, path, text, m)
			if !ok {
				return true
			}
			s.Line = 1 + strings.Count(text[:m.start], "\n")
			// Pieces overlap, so a secret can be found twice.
			if !slices.ContainsFunc(out, func(o secret) bool { return o == s || r.ID == genericRule && o.Line == s.Line }) {
				out = append(out, s)
			}
			return len(out) < maxSecrets
		})
		if err != nil {
			return out, err
		}
		if len(out) >= maxSecrets {
			break
		}
	}
	return out, nil
}

// searchSpans returns, for each rule that may match, the parts of text that must be searched, in order.
func (all *SecretRules) searchSpans(text string) map[int][]span {
	where := map[int][]span{}
	whole := []span{{0, len(text)}}
	for _, i := range all.withoutKeywords {
		where[i] = whole
	}
	all.keywords.find(text, func(word, end int) bool {
		for _, i := range all.byWord[word] {
			r, spans := all.Rules[i], where[i]
			if r.reach == 0 {
				if spans == nil {
					where[i] = whole
				}
				continue
			}
			before := r.reach
			if r.Assigned {
				value := 0
				if r.ID == genericRule {
					value = genericValue
				}
				if !assignment(text, end, value) {
					continue
				}
				before = r.before
			}
			s := span{max(0, end-before-edgeBytes), min(len(text), end+r.reach+edgeBytes)}
			if n := len(spans); n > 0 && s.start <= spans[n-1].end {
				spans[n-1].end = s.end
				continue
			}
			where[i] = append(spans, s)
		}
		return true
	})
	return where
}

// search calls hit with each match of the rule's expression in the given parts of text, until hit returns false.
func (r *SecretRule) search(ctx context.Context, text string, spans []span, hit func(span) bool) error {
	overlap := r.reach
	if overlap == 0 {
		overlap = maxKeyReach
	}
	for _, s := range spans {
		for start := s.start; ; {
			if err := ctx.Err(); err != nil {
				return err
			}
			end := min(start+maxPiece, s.end)
			for _, loc := range r.regex().FindAllStringIndex(text[start:end], -1) {
				m := span{start + loc[0], start + loc[1]}
				// A match that begins or ends where the piece does is dropped, unless the text begins or ends there too: the
				// expression may not match there in the whole text. Pieces overlap, so another one contains a real match inside.
				if m.start == start && start > 0 || m.end == end && end < len(text) {
					continue
				}
				if !hit(m) {
					return nil
				}
			}
			if end == s.end {
				break
			}
			start = end - overlap - edgeBytes
		}
	}
	return nil
}

// judge returns the secret that the match m of the rule r contains, and false if the match is not a secret. It decides as
// gitleaks does, but the path of the file alone never excludes a match.
func (all *SecretRules) judge(r *SecretRule, path, text string, m span) (secret, bool) {
	match := strings.Trim(text[m.start:m.end], "\n")
	found := match
	if groups := r.regex().FindStringSubmatch(match); len(groups) > 1 {
		if r.SecretGroup > 0 && r.SecretGroup < len(groups) {
			found = groups[r.SecretGroup]
		} else if i := slices.IndexFunc(groups[1:], func(g string) bool { return g != "" }); i >= 0 {
			found = groups[1+i]
		}
	}
	if r.Entropy != 0 && entropy(found) <= r.Entropy {
		return secret{}, false
	}
	for _, l := range append([]*secretAllowList{all.Allowlist}, r.Allowlists...) {
		if l.allows(path, match, found, text, m) {
			return secret{}, false
		}
	}
	return secret{Rule: r.ID, description: r.Description, text: found}, true
}

// allows reports whether the allow list says that a match is not a secret. m is the position of match in text, and found is the
// secret in it.
func (l *secretAllowList) allows(path, match, found, text string, m span) bool {
	target := found
	switch l.RegexTarget {
	case "match":
		target = match
	case "line":
		start := max(strings.LastIndexByte(text[:m.start], '\n')+1, m.start-secretContext)
		end := min(m.end+secretContext, len(text))
		if i := strings.IndexByte(text[m.end:end], '\n'); i >= 0 {
			end = m.end + i
		}
		target = text[start:end]
	}
	regex := matches(l.regexes, target)
	stop := len(l.StopWords) > 0 && l.stopWordFinder.foundIn(found)
	if strings.EqualFold(l.Condition, "and") {
		return (len(l.Regexes) == 0 || regex) && (len(l.StopWords) == 0 || stop) && (len(l.Paths) == 0 || matches(l.paths, path)) &&
			len(l.Regexes)+len(l.StopWords) > 0
	}
	return regex || stop
}

// matches reports whether the expression that expr returns, if any, matches a part of s.
func matches(expr func() *regexp.Regexp, s string) bool {
	re := expr()
	return re != nil && re.FindString(s) != "" // an empty match counts as none
}

// entropy returns the Shannon entropy in bits per character. As in gitleaks, it counts characters but divides by the number of
// bytes.
func entropy(s string) float64 {
	counts := map[rune]int{}
	for _, r := range s {
		counts[r]++
	}
	var bits float64
	for _, c := range counts {
		p := float64(c) / float64(len(s))
		bits -= p * math.Log2(p)
	}
	return bits
}
