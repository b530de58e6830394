// Package dialecttest has helpers for the tests of all dialects.
package dialecttest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/wire/llm/dialect"
)

// Meter writes an answer to several meters: whole, in pieces of several sizes, and in pieces of the sizes in cuts with the rest
// as the last piece. It checks that all meters report the same, and returns one of them.
func Meter(t testing.TB, open func() dialect.Meter, answer string, cuts ...int) dialect.Meter {
	t.Helper()
	whole := open()
	write(t, whole, answer)
	for _, size := range []int{1, 2, 7, 64, 1000} {
		m := open()
		for p := range slices.Chunk([]byte(answer), size) {
			write(t, m, string(p))
		}
		same(t, whole, m, fmt.Sprintf("pieces of %d bytes", size))
	}
	m := open()
	for _, cut := range cuts {
		cut = min(max(0, cut), len(answer))
		write(t, m, answer[:cut])
		answer = answer[cut:]
	}
	write(t, m, answer)
	same(t, whole, m, "pieces as asked")
	return whole
}

// write writes p to m, and fails the test if that fails or if m reports a negative number.
func write(t testing.TB, m dialect.Meter, p string) {
	t.Helper()
	if n, err := m.Write([]byte(p)); n != len(p) || err != nil {
		t.Fatalf("Write of %d bytes returns %d, %v", len(p), n, err)
	}
	if tokens, _ := m.Usage(); min(tokens.Input, tokens.Output, tokens.CacheRead, tokens.CacheWrite, m.OutputBytes()) < 0 {
		t.Fatalf("negative numbers: %+v, %d", tokens, m.OutputBytes())
	}
}

// same checks that two meters report the same values. The answer was written whole to a; what describes how it was written to b.
func same(t testing.TB, a, b dialect.Meter, what string) {
	t.Helper()
	if x, y := Describe(a), Describe(b); x != y {
		t.Fatalf("%s: %s\nin one piece: %s", what, y, x)
	}
}

// Describe returns all values that m reports as one line.
func Describe(m dialect.Meter) string {
	tokens, complete := m.Usage()
	return fmt.Sprintf("in %d out %d read %d write %d complete %v seen %d done %v ids %v",
		tokens.Input, tokens.Output, tokens.CacheRead, tokens.CacheWrite, complete, m.OutputBytes(), m.Done(), m.IDs())
}

// Endpoint returns the endpoint of d with the given method and path. It checks that no other spelling of the path and no other
// method is accepted.
func Endpoint(t *testing.T, d dialect.Dialect, method, path string) dialect.Endpoint {
	t.Helper()
	e, ok := d.Endpoint(method, path)
	if !ok {
		t.Fatalf("%s %s is refused", method, path)
	}
	dir, base := path[:strings.LastIndexByte(path, '/')], path[strings.LastIndexByte(path, '/'):]
	others := []string{
		path + "/", "/" + path, path[1:], path + "?x=1", path + "#x", path + ";x=1", path + "%00", path + "\x00", path + " ", path + "%20", path + "/..", path + "/.",
		dir + "/" + base, dir + "/." + base, dir + "/x/.." + base, dir + "%2f" + base[1:], dir + "/%2e" + base, dir + "/%2e%2e" + dir + base, dir + `\` + base[1:],
		"/.." + path, "/%2e%2e" + path, strings.ToUpper(path), dir + "/" + strings.ToUpper(base[1:2]) + base[2:], "http://example.com" + path, dir, "", "/", "*",
		dir + fmt.Sprintf("/%%%02x", base[1]) + base[2:], dir + fmt.Sprintf("/%%%02X", base[1]) + base[2:],
	}
	for i := 1; i < len(path); i++ {
		if path[i] != '/' {
			others = append(others, path[:i]+fmt.Sprintf("%%%02x", path[i])+path[i+1:])
		}
	}
	for _, other := range others {
		if got, ok := d.Endpoint(method, other); ok && got.Path == e.Path {
			t.Errorf("%s %q is accepted as %s", method, other, e.Path)
		}
	}
	for _, m := range []string{"GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE", "", "post", "get"} {
		if _, ok := d.Endpoint(m, path); ok && m != method {
			t.Errorf("%s %s is accepted", m, path)
		}
	}
	return e
}

// Refusal checks that err is a refusal with status 400 whose param is param and whose message contains word.
func Refusal(t testing.TB, err error, param, word string) {
	t.Helper()
	if err == nil {
		t.Fatal("accepted")
	}
	r := dialect.AsRefusal(err)
	if r.Status != http.StatusBadRequest || r.Code != "invalid_request" || r.Param != param || !strings.Contains(r.Message, word) {
		t.Fatalf("%d %s, param %q: %s\nwant param %q and %q", r.Status, r.Code, r.Param, r.Message, param, word)
	}
}

// Duplicates creates bodies in which the first name of an object occurs twice, once unchanged and once escaped, and checks that
// parse refuses each of them.
func Duplicates(t *testing.T, body string, parse func(body []byte) error) {
	t.Helper()
	if err := parse([]byte(body)); err != nil {
		t.Fatal(err)
	}
	n := 0
	for i, rest := range body {
		if rest != '{' {
			continue
		}
		name, _, ok := strings.Cut(strings.TrimLeft(body[i+1:], " \n"), ":")
		if !ok || len(name) < 3 || name[0] != '"' || name[len(name)-1] != '"' || strings.ContainsAny(name[1:len(name)-1], `"{}`) {
			continue // an empty object, or a brace within a string
		}
		n++
		for _, again := range []string{name, fmt.Sprintf(`"\u%04x%s`, name[1], name[2:])} {
			twice := body[:i+1] + again + ":null," + body[i+1:]
			if err := parse([]byte(twice)); err == nil {
				t.Errorf("accepted with %s twice at byte %d", again, i)
			}
		}
	}
	if n < 10 {
		t.Errorf("only %d objects in the body", n)
	}
}
