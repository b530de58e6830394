package hostcheck

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// fakeGit creates a git that reports this version and has these programs.
func fakeGit(t *testing.T, version string, programs ...string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range programs {
		write(p, "")
	}
	write("git", "#!/bin/sh\n[ -z \"$GIT_EXEC_PATH\" ] || exit 9\ncase $1 in\nversion) "+version+" ;;\n--exec-path) echo '"+dir+"' ;;\nesac\n")
	return filepath.Join(dir, "git")
}

func TestGit(t *testing.T) {
	t.Setenv("GIT_EXEC_PATH", "/elsewhere") // The environment must not be used.
	all := gitPrograms
	for name, tt := range map[string]struct {
		program, status, detail string
	}{
		"good":    {fakeGit(t, "echo git version 2.39.5", all...), caisson.CheckOK, "2.39 in "},
		"newer":   {fakeGit(t, "echo 'git version 3.0.0.rc1 (Distributor 7)'", all...), caisson.CheckOK, "3.0 in "},
		"old":     {fakeGit(t, "echo git version 2.38.9", all...), caisson.CheckWarning, "2.38"},
		"ancient": {fakeGit(t, "echo git version 1.99", all...), caisson.CheckWarning, "1.99"},
		"partly":  {fakeGit(t, "echo git version 2.40", all[:1]...), caisson.CheckWarning, all[1]},
		"fails":   {fakeGit(t, "echo broken >&2; exit 3", all...), caisson.CheckWarning, "broken"},
		"other":   {fakeGit(t, "echo something else", all...), caisson.CheckWarning, "not a version"},
		"silent":  {fakeGit(t, "true", all...), caisson.CheckWarning, "not a version"},
		"none":    {"/nonexistent/git", caisson.CheckWarning, "/nonexistent"},
	} {
		c := gitAt(t.Context(), []string{"/nonexistent/git", tt.program})
		if c.Name != "git" || c.Status != tt.status || !strings.Contains(c.Detail, tt.detail) || (c.Remedy == "") != (tt.status == caisson.CheckOK) {
			t.Errorf("%s: %+v", name, c)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if c := gitAt(ctx, []string{fakeGit(t, "echo git version 2.40", all...)}); c.Status != caisson.CheckWarning {
		t.Errorf("with a context that has ended: %+v", c)
	}
}

func TestGitOfThisMachine(t *testing.T) {
	if c := git(t.Context()); strings.Contains(c.Detail, "there is none") {
		testneed.Skip(t, "git", c.Detail)
	}
	if c := git(t.Context()); c.Status != caisson.CheckOK {
		t.Errorf("%+v", c)
	}
}

func FuzzParseGit(f *testing.F) {
	for _, s := range []string{"git version 2.39.5", "git version 2.50.1 (Apple Git-155)", "git version", "git version -1.-2", "2.39"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		major, minor, err := parseGit(s)
		if err == nil && (major < 0 || minor < 0 || !strings.HasPrefix(s, "git version ")) {
			t.Errorf("%q is version %d.%d", s, major, minor)
		}
	})
}
