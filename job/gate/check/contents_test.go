package check

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
)

func TestCheckSecrets(t *testing.T) {
	token := gatetest.GithubToken()
	texts := map[string]string{"clean": "x\n", "secret": "a\nt = " + token + "\n", "allowed": "t = " + token + " # gitleaks:allow\n"}
	host := checkedHost(t, "old")
	if err := os.WriteFile(filepath.Join(host.Name(), "has"), []byte("x = "+token), 0o644); err != nil {
		t.Fatal(err)
	}
	file := func(c caisson.Change, hash string) caisson.Change {
		return but(c, func(c *caisson.Change) { c.Hash, c.Size = hash, int64(len(texts[hash])) })
	}
	changes := []caisson.Change{
		file(addedAt("a"), "clean"), file(addedAt("b"), "secret"), file(addedAt("c"), "allowed"), file(modifiedAt("old"), "secret"),
		file(modifiedAt("has"), "secret"), file(addedAt("missing"), "nothing"), but(file(modifiedAt("m"), "secret"), func(c *caisson.Change) { c.Kind = caisson.ChangeMode }),
		file(addedAt(".gitleaks.toml"), "clean"), file(addedAt(".gitleaksignore"), "clean"), but(addedAt("lie"), func(c *caisson.Change) { c.Hash, c.Size = "long", 1 }),
		file(addedAt("d.p12"), "clean"), file(modifiedAt("host-has-it-not"), "secret"),
	}
	texts[".gitleaksignore"] = "b:github-pat:2\n"
	texts["long"] = strings.Repeat("x", 5<<20)
	if err := Changes(context.Background(), changes, host, contentsOf(texts), Rules{}); err != nil {
		t.Fatal(err)
	}
	if got, want := verdictsOf(changes), "pass ask ask ask pass deny pass pass pass deny ask ask"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	for _, c := range changes {
		for _, f := range c.Finding {
			if strings.Contains(f.Message, token[5:]) {
				t.Errorf("the message has the secret: %s", f.Message)
			}
		}
	}
	if !slices.ContainsFunc(changes[1].Finding, func(f caisson.Finding) bool { return f.Line == 2 }) {
		t.Errorf("no line: %v", changes[1].Finding)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("broken") }

// TestCheckFailsClosed makes the inputs of checks fail.
func TestCheckFailsClosed(t *testing.T) {
	host := checkedHost(t, "a")
	fresh := func() []caisson.Change { return []caisson.Change{addedAt("x"), removedAt("a")} }

	changes := fresh()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Changes(ctx, changes, host, contentsOf(nil), Rules{}); err == nil || verdictsOf(changes) != "deny deny" {
		t.Errorf("canceled: %v, %s", err, verdictsOf(changes))
	}
	changes = fresh()
	broken := func(string) (io.ReadCloser, error) { return io.NopCloser(failing{}), nil }
	if err := Changes(context.Background(), changes, host, broken, Rules{}); err != nil || verdictsOf(changes) != "deny pass" {
		t.Errorf("contents that cannot be read: %v, %s", err, verdictsOf(changes))
	}
	changes = fresh()
	panics := func(string) (io.ReadCloser, error) { panic("broken") }
	if err := Changes(context.Background(), changes, host, panics, Rules{}); err != nil || verdictsOf(changes) != "deny pass" {
		t.Errorf("a search that breaks down: %v, %s", err, verdictsOf(changes))
	}
	changes = fresh()
	if err := Changes(context.Background(), changes, host, contentsOf(nil), Rules{ScanTime: 1}); err != nil || verdictsOf(changes) != "deny pass" {
		t.Errorf("no time: %v, %s", err, verdictsOf(changes))
	}
	changes = fresh()
	gone := checkedHost(t)
	gone.Close()
	if err := Changes(context.Background(), changes, gone, contentsOf(nil), Rules{}); err == nil && changes[0].Verdict != deny {
		t.Errorf("a host that cannot be read: %s", verdictsOf(changes))
	}
}

// BenchmarkCheck checks 1,000 files of source text in 100 directories.
func BenchmarkCheck(b *testing.B) {
	var text strings.Builder
	for _, name := range []string{"check.go", "check_tree.go", "secret.go"} {
		src, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		text.Write(src)
	}
	var host []string
	var changes []caisson.Change
	for i := range 1000 {
		dir := "src/d" + strconv.Itoa(i%100)
		host = append(host, dir+"/f"+strconv.Itoa(i))
		changes = append(changes, but(addedAt(dir+"/g"+strconv.Itoa(i)), func(c *caisson.Change) { c.Hash, c.Size = "text", int64(text.Len()) }))
	}
	root := checkedHost(b, host...)
	read := contentsOf(map[string]string{"text": text.String()})
	b.SetBytes(int64(len(changes) * text.Len()))
	for b.Loop() {
		all := slices.Clone(changes)
		if err := Changes(context.Background(), all, root, read, Rules{}); err != nil {
			b.Fatal(err)
		}
		for _, c := range all {
			if c.Verdict != pass {
				b.Fatal(c.Verdict, c.Finding)
			}
		}
	}
}
