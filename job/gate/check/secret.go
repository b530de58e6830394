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

// Limits of the search for secrets in one file.
const (
	maxReach      = 4 << 10   // bytes of one secret including its context
	maxKeyReach   = 32 << 10  // the same for private keys
	maxPiece      = 128 << 10 // bytes matched by a regular expression at once; the context is checked between two pieces
	maxSecrets    = 10        // reported per file
	secretContext = 2 << 10   // bytes of a line, on either side of a match, that allow lists are matched against
	genericValue  = 10        // minimum length in bytes of a secret that the generic rule finds
	edgeBytes     = 8         // bytes beyond the longest match, for the characters that a rule checks around it
)

// A secret is a possible secret that was found.
type secret struct {
	Rule, description string
	text              string // the secret itself; empty if the file's path matched
	Line              int    // from 1; 0 if the file's path matched
}

// span is a part of a text, in bytes.
type span struct{ start, end int }

// find returns the possible secrets in a file, at most maxSecrets. Comments in the text cannot exclude a match. It returns the
// context's error if the context is canceled; the context is checked well within every second, regardless of the text.
func (all *SecretRules) find(ctx context.Context, path, text string) ([]secret, error) {
	return all.FindWhere(ctx, path, text, func(*SecretRule) bool { return true })
}

// FindWhere is like find, with only the rules for which use returns true.
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
	// Specific rules come first: the generic rule does not report a line again in which another rule found a secret.
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
	for _, i := range all.always {
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

// search calls hit for each match of the rule's expression in spans, until hit returns false.
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
				// At the edge of a piece that is not an edge of the text, an expression may match although it would not match
				// in the whole text.
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

// judge decides as gitleaks does whether a match is a secret, except that it ignores allow lists by path.
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

// allows reports whether the allow list excludes a match.
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
	stop := len(l.StopWords) > 0 && l.stop.any(found)
	if strings.EqualFold(l.Condition, "and") {
		return (len(l.Regexes) == 0 || regex) && (len(l.StopWords) == 0 || stop) && (len(l.Paths) == 0 || matches(l.paths, path)) &&
			len(l.Regexes)+len(l.StopWords) > 0
	}
	return regex || stop
}

func matches(expr func() *regexp.Regexp, s string) bool {
	re := expr()
	return re != nil && re.FindString(s) != "" // an empty match does not count
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
