package commit

import (
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestParseTree(t *testing.T) {
	id := strings.Repeat("\x01", 20)
	good, err := parseTree([]byte("100644 a\x00"+id+"40000 b\x00"+id), 20)
	if err != nil || len(good.entries) != 2 || good.entry("b").typ() != typeDir || good.entry("c").typ() != typeNone {
		t.Errorf("%+v %v", good, err)
	}
	for _, bad := range []string{
		"100644 a\x00" + id[:19], "100644", "100644 a", " a\x00" + id, "100648 a\x00" + id, "-1 a\x00" + id, "1006440 a\x00" + id, "100644 \x00" + id,
		"100644 .\x00" + id, "100644 ..\x00" + id, "100644 a/b\x00" + id, "100644 a\x00" + id + "100644 a\x00" + id, "100644 a\x00" + id + "x",
	} {
		if _, err := parseTree([]byte(bad), 20); err == nil {
			t.Errorf("%q was parsed", bad)
		}
	}
}

func FuzzParseTree(f *testing.F) {
	f.Add([]byte("100644 a\x00" + strings.Repeat("\x01", 20)))
	f.Fuzz(func(t *testing.T, data []byte) {
		tree, err := parseTree(data, 20)
		if err != nil {
			return
		}
		for _, e := range tree.entries {
			if !validEntryName(e.name) || len(e.id) != 40 || e.typ() == typeNone {
				t.Errorf("%+v", e)
			}
		}
	})
}

// FuzzParseCommit checks that a parsed commit is written without changes and has plain headers.
func FuzzParseCommit(f *testing.F) {
	id := strings.Repeat("a", 40)
	f.Add([]byte("tree " + id + "\nparent " + id + "\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\ngpgsig a\n b\n\nmessage\n"))
	f.Add([]byte("tree " + id + "\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\nencoding utf-8\nmergetag x\n \n y\n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseCommit(data)
		if err != nil {
			if caisson.KindOf(err) != caisson.Denied {
				t.Errorf("%v", err)
			}
			return
		}
		if got := c.Bytes(); !slices.Equal(got, data) {
			t.Errorf("%q became %q", data, got)
		}
		if strings.ContainsAny(c.Author+c.Committer, "\n\x00") || TextFault(c.Subject()) != "" {
			t.Errorf("%+v", c)
		}
	})
}
