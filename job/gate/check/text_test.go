package check

import (
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
)

// memoryTree is a tree of files by path.
type memoryTree map[string]string

func (m memoryTree) Lookup(name string) (typ, link string, err error) {
	if text, ok := m[name]; ok {
		if link, ok := strings.CutPrefix(text, "-> "); ok {
			return fsat.TypeSymlink, link, nil
		}
		return fsat.TypeFile, "", nil
	}
	names, _ := m.Children(name)
	if len(names) > 0 {
		return fsat.TypeDir, "", nil
	}
	return fsat.TypeNone, "", nil
}

func (m memoryTree) Children(dir string) ([]string, error) {
	var names []string
	for p := range m {
		rest, ok := strings.CutPrefix("/"+p, path.Join("/", dir)+"/")
		if dir == "" {
			rest, ok = p, true
		}
		if ok {
			name, _, _ := strings.Cut(rest, "/")
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func (m memoryTree) Content(path string, limit int64) []byte {
	text := m[path]
	return []byte(text[:min(len(text), int(limit))])
}

// TestCheckTree checks changes to a Tree that is not a directory, with the rules for commits.
func TestCheckTree(t *testing.T) {
	token := gatetest.GithubToken()
	base := memoryTree{"readme": "x", "dir/old": "key " + token, "out": "-> dir", "dir/f": "x"}
	executable := func(c *caisson.Change) { c.Mode = 0o755 }
	changes := []caisson.Change{
		but(addedAt("run.sh"), executable), addedAt("README"), modifiedAt("dir/old"), addedAt("new"), linkAt("l", "out/../../x"),
		linkAt("m", "out/f"), but(addedAt("dir/run"), executable),
	}
	for i := range changes {
		changes[i].Hash = map[string]string{"new": "secret", "dir/old": "secret"}[changes[i].Path]
		if changes[i].Hash == "" {
			changes[i].Hash = "new"
		}
	}
	read := contentsOf(map[string]string{"secret": "the key is " + token})
	if err := ChangesIn(t.Context(), changes, base, read, Rules{History: true}); err != nil {
		t.Fatal(err)
	}
	if got := verdictsOf(changes); got != "pass deny pass deny deny pass pass" {
		t.Errorf("%s: %v", got, changes)
	}
	// Only paths in AskSecrets, which have had false positives, require a review instead of being denied.
	for pattern, want := range map[string]string{"new": ask, "ne*": ask, "**": ask, "dir/new": deny, "news": deny, "NEW": deny} {
		one := []caisson.Change{changes[3]}
		one[0].Verdict, one[0].Finding = "", nil
		if err := ChangesIn(t.Context(), one, base, read, Rules{History: true, AskSecrets: []string{pattern}}); err != nil || one[0].Verdict != want {
			t.Errorf("allowed %s: %s, %v", pattern, one[0].Verdict, err)
		}
	}
	// A file that could not be searched is denied, even in such paths.
	broken := func(string) (io.ReadCloser, error) { return nil, errors.New("broken") }
	one := []caisson.Change{changes[3]}
	one[0].Verdict, one[0].Finding = "", nil
	if err := ChangesIn(t.Context(), one, base, broken, Rules{History: true, AskSecrets: []string{"**"}}); err != nil || one[0].Verdict != deny {
		t.Errorf("not searched: %s, %v", one[0].Verdict, err)
	}
}

func TestCheckText(t *testing.T) {
	token := gatetest.GithubToken()
	found, err := Text(t.Context(), "subject\n\nthe token is "+token+"\n", Rules{})
	if err != nil || len(found) != 1 || found[0].Verdict != ask || found[0].Line != 3 || strings.Contains(found[0].Message, token[8:]) {
		t.Errorf("%v, %v", found, err)
	}
	if found, err := Text(t.Context(), token, Rules{History: true, AskSecrets: []string{"**"}}); err != nil || len(found) != 1 || found[0].Verdict != deny {
		t.Errorf("%v, %v", found, err)
	}
	if found, err := Text(t.Context(), "nothing here", Rules{}); err != nil || found != nil {
		t.Errorf("%v, %v", found, err)
	}
	if _, err := Text(t.Context(), "too long", Rules{MaxScan: 4}); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("too long: %v", err)
	}
	ended, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	if _, err := Text(ended, "token = "+token, Rules{}); caisson.KindOf(err) != caisson.Exhausted {
		t.Errorf("no time: %v", err)
	}
}
