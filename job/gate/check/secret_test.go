package check

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/job/gate/gatetest"
)

func secretRulesOf(t testing.TB) *SecretRules {
	t.Helper()
	all, err := LoadSecretRules()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const hexes = "0123456789abcdef"

func privateKey(n int) string {
	body := base64.StdEncoding.EncodeToString([]byte(gatetest.Sample(n, gatetest.Alnum)))
	return "-----BEGIN RSA PRIVATE" + " KEY-----\n" + body + "\n-----END RSA PRIVATE" + " KEY-----\n"
}

func TestSecrets(t *testing.T) {
	all := secretRulesOf(t)
	for _, c := range []struct {
		name, path, text string
		rule             string // "" for none
		line             int
	}{
		{name: "nothing", text: "package main\n\nfunc main() {}\n"},
		{name: "a token", text: "x\ny\nt = " + gatetest.GithubToken() + "\n", rule: "github-pat", line: 3},
		{name: "an inline exception", text: gatetest.GithubToken() + " # gitleaks:allow\n", rule: "github-pat", line: 1},
		{name: "an exception above", text: "// gitleaks:allow\n" + gatetest.GithubToken(), rule: "github-pat", line: 2},
		{name: "a file that scanners leave out", path: "node_modules/x/yarn.lock", text: gatetest.GithubToken(), rule: "github-pat", line: 1},
		{name: "a file named as the scanner's configuration", path: ".gitleaks.toml", text: gatetest.GithubToken(), rule: "github-pat", line: 1},
		{name: "a rule's own exception by path", path: "@octokit/auth-token/README.md", text: gatetest.GithubToken(), rule: "github-pat", line: 1},
		{name: "an image", path: "a.png", text: "\x89PNG\r\n\x1a\n\x00" + gatetest.GithubToken(), rule: "github-pat", line: 3},
		{name: "AWS", text: "AKIA" + gatetest.Sample(16, gatetest.Upper), rule: "aws-access-token", line: 1},
		{name: "a private key", text: "a\n" + privateKey(3000), rule: "private-key", line: 2},
		{name: "words around it", text: `api_key = "` + gatetest.Sample(32, hexes) + `"`, rule: "generic-api-key", line: 1},
		{name: "the same in a lock file", path: "go.sum", text: `api_key = "` + gatetest.Sample(32, hexes) + `"`},
		{name: "a placeholder", text: `api_key = "${API_KEY}"` + "\n" + `password = "xxxxxxxxxxxxxxxxxxxx"`},
		{name: "low entropy", text: "ghp_" + strings.Repeat("a", 36)},
		{name: "by name", path: "certs/a.P12", rule: "pkcs12-file"},
		{name: "by content, elsewhere", path: "a.php", text: `'secret_key' => 'sk_` + gatetest.Sample(29, gatetest.Alnum) + `'`, rule: "freemius-secret-key", line: 1},
		{name: "in another language", path: "a.go", text: `'secret_key' => 'sk_` + gatetest.Sample(29, gatetest.Alnum) + `'`, rule: "generic-api-key", line: 1},
		{name: "at the edge of a piece", text: strings.Repeat("key ", maxPiece/4-5) + gatetest.GithubToken() + strings.Repeat(" key", maxPiece), rule: "github-pat", line: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			found, err := all.find(context.Background(), c.path, c.text)
			if err != nil {
				t.Fatal(err)
			}
			if c.rule == "" {
				if len(found) > 0 {
					t.Errorf("found %s: %q", found[0].Rule, found[0].text)
				}
				return
			}
			if !slices.ContainsFunc(found, func(s secret) bool { return s.Rule == c.rule && s.Line == c.line }) {
				t.Errorf("found %+v, want %s in line %d", found, c.rule, c.line)
			}
		})
	}
}

// TestSecretsWherever moves a secret across the boundaries of pieces.
func TestSecretsWherever(t *testing.T) {
	all := secretRulesOf(t)
	key := privateKey(2000)
	for _, at := range []int{0, 100, maxPiece - len(key), maxPiece - 40, maxPiece} {
		filler := strings.Repeat("-----begin \n", at/12+1)[:at]
		text := filler + "\n" + key + strings.Repeat("\n-----begin", maxPiece/40)
		found, err := all.find(context.Background(), "", text)
		if err != nil || !slices.ContainsFunc(found, func(s secret) bool { return s.Rule == privateKeyRule }) {
			t.Errorf("at %d: found %d, %v", at, len(found), err)
		}
	}
}

// TestSecretRules checks the assumptions of the search about the rules.
func TestSecretRules(t *testing.T) {
	all := secretRulesOf(t)
	if len(all.Rules) < 200 {
		t.Errorf("%d rules", len(all.Rules))
	}
	near, assigned := 0, 0
	for _, r := range all.Rules {
		if r.Regex == "" {
			continue
		}
		r.regex() // it must compile
		if r.reach > 0 {
			near++
		}
		if r.Assigned {
			assigned++
		}
		if r.ID == genericRule && !strings.Contains(r.Regex, "{"+strconv.Itoa(genericValue)+",") {
			t.Errorf("%s has another form than is assumed: %s", r.ID, r.Regex)
		}
		if r.reach > maxReach && r.ID != privateKeyRule {
			t.Errorf("%s reaches %d bytes", r.ID, r.reach)
		}
	}
	if near < len(all.Rules)*9/10 {
		t.Errorf("only %d of %d rules are looked for near their words", near, len(all.Rules))
	}
	if assigned < len(all.Rules)/3 {
		t.Errorf("only %d of %d rules are known to look for assignments", assigned, len(all.Rules))
	}
	all.Allowlist.paths()
	all.Allowlist.regexes()
}

func TestMustContain(t *testing.T) {
	for _, c := range []struct {
		expr string
		has  bool
		most int
	}{
		{`abc`, true, 12},
		{`x(?:abc|abd)y`, false, 20},
		{`(?i)x(?:ABC|yabcy)`, true, 24},
		{`ab[cd]`, false, 9},
		{`a[b]c?`, false, 12},
		{`(?:ab)c{2}`, false, 16},
		{`a(b)c`, true, 12},
		{`(?:abc)*`, false, -1},
		{`(?:abc)+`, true, -1},
		{`(?:abc){0,2}`, false, 24},
		{`(?:abc){1,2}x{3}`, true, 36},
		{`.*abc`, true, -1},
		{`\babc$`, true, 12},
	} {
		r := &SecretRule{Regex: c.expr, Keywords: []string{"abc"}}
		if err := r.prepare(); err != nil {
			t.Fatal(err)
		}
		if got := r.reach > 0; got != c.has {
			t.Errorf("%s must contain abc: %v, want %v", c.expr, got, c.has)
		}
		if c.has && c.most >= 0 && r.reach != c.most || c.has && c.most < 0 && r.reach != maxReach {
			t.Errorf("%s reaches %d, want %d", c.expr, r.reach, c.most)
		}
	}
}

// TestSecretsHostile searches texts that are made to take long. The search must end soon after its deadline.
func TestSecretsHostile(t *testing.T) {
	all := secretRulesOf(t)
	var list []string
	for _, r := range all.Rules {
		list = append(list, r.Keywords...)
	}
	keywords := strings.Join(list, " ")
	for name, text := range map[string]string{
		"one character":           strings.Repeat("a", 1<<20),
		"one word":                strings.Repeat("key=", 1<<18),
		"all words, then nothing": keywords + strings.Repeat("a", 1<<20),
		"all words, all over":     strings.Repeat(keywords, 1<<20/len(keywords)),
		"lines":                   strings.Repeat("secret\n", 1<<17),
		"begins of keys":          strings.Repeat("-----BEGIN PRIVATE"+" KEY-----", 1<<15),
		"binary":                  gatetest.Sample(1<<20, "\x00\xff\xfe\x80key="),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			start := time.Now()
			_, err := all.find(ctx, "", text)
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestWords(t *testing.T) {
	list := []string{"he", "she", "his", "hers", "a-b", ""}
	w := newWords(list)
	for _, text := range []string{"", "ushers", "USHERS", "xa-bhishe", "h\x00e", "aa-a-b"} {
		var got, want []string
		w.find(text, func(word, end int) bool {
			got = append(got, fmt.Sprint(list[word], end))
			return true
		})
		for i := range list[:5] {
			for _, loc := range regexp.MustCompile(`(?i)`+regexp.QuoteMeta(list[i])).FindAllStringIndex(text, -1) {
				want = append(want, fmt.Sprint(list[i], loc[1]))
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || w.foundIn(text) != (len(want) > 0) {
			t.Errorf("in %q: %v, want %v", text, got, want)
		}
	}
}

// FuzzSecrets checks that the part of a text that an expression is applied to contains all its matches in the whole text.
func FuzzSecrets(f *testing.F) {
	all := secretRulesOf(f)
	for _, s := range []string{
		`api_key = "` + gatetest.Sample(32, hexes) + `"`, "token\n\t:\n= 'abcdefghij'", "secret==========", "key|| ====abcdef", "passwd   =>\x60" + gatetest.Sample(12, gatetest.Alnum),
		"snyk_token := " + gatetest.Sample(8, hexes) + "-" + gatetest.Sample(4, hexes), "adafruit,,,,,aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ", "access ?= x.y-z_0123456789;",
		"\u212aey=abcdefghijkl ", "auth" + strings.Repeat("x", 20) + "   :::=" + gatetest.Sample(10, gatetest.Alnum),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4000 {
			return
		}
		where := all.searchSpans(text)
		lowered := strings.ToLower(text)
		for i, r := range all.Rules {
			if r.Regex == "" || !slices.ContainsFunc(r.Keywords, func(k string) bool { return strings.Contains(lowered, strings.ToLower(k)) }) {
				continue
			}
			for _, m := range r.regex().FindAllStringIndex(text, -1) {
				if !slices.ContainsFunc(where[i], func(s span) bool { return s.start <= m[0] && m[1] <= s.end }) && isASCII(text) {
					t.Fatalf("%s matches %q in %q, but looks at %v only", r.ID, text[m[0]:m[1]], text, where[i])
				}
			}
		}
	})
}

// isASCII excludes the letters beyond ASCII that case-insensitive expressions treat as k and s, but the search for keywords
// does not.
func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 })
}
