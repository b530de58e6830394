package gitserver

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// environ returns the environment of git in tests: without the configuration of the machine, and with reproducible commits.
func environ() []string {
	return []string{
		"HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
		"GIT_AUTHOR_NAME=Ada", "GIT_AUTHOR_EMAIL=ada@example.com", "GIT_AUTHOR_DATE=1700000000 +0000",
		"GIT_COMMITTER_NAME=Ada", "GIT_COMMITTER_EMAIL=ada@example.com", "GIT_COMMITTER_DATE=1700000000 +0000",
		"GIT_CONFIG_COUNT=3", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
		"GIT_CONFIG_KEY_1=init.defaultBranch", "GIT_CONFIG_VALUE_1=main",
		"GIT_CONFIG_KEY_2=advice.detachedHead", "GIT_CONFIG_VALUE_2=false",
	}
}

// Command returns a git command, not yet started, in dir and with the environment of tests.
func Command(t testing.TB, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(environ(), "PATH="+os.Getenv("PATH"))
	return cmd
}

// Git runs git in dir and returns its trimmed output. The test fails if git fails.
func Git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := TryGit(t, dir, args...)
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// TryGit runs git in dir and returns its trimmed standard output and standard error.
func TryGit(t testing.TB, dir string, args ...string) (string, error) {
	t.Helper()
	out, err := Command(t, dir, args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Commit writes files, by slash-separated name, to the work tree dir, commits everything there and returns the commit.
func Commit(t testing.TB, dir, message string, files map[string]string) string {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	Git(t, dir, "add", "-A")
	Git(t, dir, "commit", "-q", "--allow-empty", "-m", message)
	return Git(t, dir, "rev-parse", "HEAD")
}

// Seed fills the bare repository at bare with one commit on main, and returns a work tree of it and the commit.
func Seed(t testing.TB, bare string, files map[string]string) (work, commit string) {
	t.Helper()
	work = t.TempDir()
	Git(t, work, "init", "-q", "-b", "main")
	commit = Commit(t, work, "first", files)
	Git(t, work, "remote", "add", "origin", bare)
	Git(t, work, "push", "-q", "origin", "main")
	return work, commit
}
