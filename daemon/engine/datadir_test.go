package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestInstance tests that a data directory keeps its id where it is and when it is moved, and that a copy gets another one.
func TestInstance(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	at := func(name string) string { return filepath.Join(parent, name) }
	id := func(name string, wantRestored bool) caisson.ID {
		t.Helper()
		id, restored, err := instanceID(at(name))
		if err != nil || restored != wantRestored {
			t.Fatalf("%s: %s, restored %t, %v", name, id, restored, err)
		}
		return id
	}
	if err := os.Mkdir(at("a"), 0o700); err != nil {
		t.Fatal(err)
	}
	first := id("a", false)
	if err := os.WriteFile(at("a/caisson.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if again := id("a", false); again != first {
		t.Errorf("the id has changed from %s to %s", first, again)
	}
	if err := os.CopyFS(at("copy"), os.DirFS(at("a"))); err != nil {
		t.Fatal(err)
	}
	copied := id("copy", true)
	if copied == first || id("copy", true) != copied || id("a", false) != first {
		t.Errorf("the copy has the id %s, the original %s", copied, first)
	}
	if err := os.Rename(at("a"), at("moved")); err != nil {
		t.Fatal(err)
	}
	if moved := id("moved", false); moved != first {
		t.Errorf("a moved directory has the id %s, not %s", moved, first)
	}
	if err := os.Mkdir(at("restored"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("restored/caisson.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if id("restored", true) == first {
		t.Error("a restored directory has the id of another one")
	}
	id("restored", true) // the first start may have failed before the store was in order
	root, err := os.OpenRoot(at("restored"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := (&dataDir{root: root}).markChecked(); err != nil {
		t.Error(err)
	}
	id("restored", false)
	if err := os.Remove(at("moved/place")); err != nil { // as of an earlier build
		t.Fatal(err)
	}
	if old := id("moved", false); old != first {
		t.Errorf("a directory of an earlier build has the id %s, not %s", old, first)
	}
}

func TestPrepareDataDir(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	wide := func(name string, files ...string) string {
		at := filepath.Join(dir, name)
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(at, f), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(at, 0o777); err != nil {
			t.Fatal(err)
		}
		return at
	}
	for at, ok := range map[string]bool{
		filepath.Join(dir, "new/below"): true, wide("empty"): true, wide("ours", "instance"): true, wide("theirs", "report.doc"): false,
	} {
		err := PrepareDataDir(at)
		if (err == nil) != ok || err != nil && caisson.FieldOf(err) != "dataDir" {
			t.Errorf("%s: %v", at, err)
		}
		if info, err := os.Stat(at); err != nil || (info.Mode().Perm() == 0o700) != ok {
			t.Errorf("%s has the mode %v, %v", at, info.Mode(), err)
		}
	}
	if os.Geteuid() == 0 {
		at := wide("of another user")
		if err := os.Chown(at, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if err := PrepareDataDir(at); caisson.FieldOf(err) != "dataDir" {
			t.Error(err)
		}
	}
}
