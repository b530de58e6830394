package hostcheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

const (
	// gitTimeout limits the duration of one git command.
	gitTimeout = 10 * time.Second
	// gitMajor and gitMinor are the oldest version of git that the relay was tested with, that of Debian 12.
	gitMajor, gitMinor = 2, 39
)

// gitPaths are the paths where the relay searches for git.
var gitPaths = []string{"/usr/bin/git", "/usr/local/bin/git", "/bin/git"}

// gitPrograms are the programs of git that the relay, or git on its behalf, starts.
var gitPrograms = []string{"git-upload-pack", "git-remote-http"}

// git checks that git and its helper programs, which only the relay needs, are installed and recent enough.
func git(ctx context.Context) caisson.Check { return gitAt(ctx, gitPaths) }

// gitAt checks that git is at one of the paths places, is version 2.39 or newer, and has the helper programs that are needed.
func gitAt(ctx context.Context, places []string) caisson.Check {
	const name, remedy = "git", "install git 2.39 or newer, whole; it is needed for repositories (caisson repo) only"
	program := ""
	for _, p := range places {
		if unix.Access(p, unix.X_OK) == nil {
			program = p
			break
		}
	}
	if program == "" {
		return warning(name, remedy, "there is none in %s; repositories cannot be used", strings.Join(dirsOf(places), ", "))
	}
	version, err := gitOutput(ctx, program, "version")
	if err != nil {
		return warning(name, remedy, "%s does not work: %v", program, err)
	}
	major, minor, err := parseGit(version)
	switch {
	case err != nil:
		return warning(name, remedy, "%v", err)
	case major < gitMajor || major == gitMajor && minor < gitMinor:
		return warning(name, remedy, "%s is version %d.%d, which is too old for repositories", program, major, minor)
	}
	dir, err := gitOutput(ctx, program, "--exec-path")
	if err != nil || !filepath.IsAbs(dir) {
		return warning(name, remedy, "%s does not say where its programs are: %v", program, err)
	}
	for _, p := range gitPrograms {
		if unix.Access(filepath.Join(dir, p), unix.X_OK) != nil {
			return warning(name, remedy, "%s is not in %.200q; repositories cannot be used", p, dir)
		}
	}
	return ok(name, "%d.%d in %s", major, minor, program)
}

// dirsOf returns the directory of each path.
func dirsOf(paths []string) []string {
	dirs := make([]string, len(paths))
	for i, p := range paths {
		dirs[i] = filepath.Dir(p)
	}
	return dirs
}

// gitOutput runs git, the file program, with the argument question, and returns the first line of its output. git finds no
// repository and no configuration, because it runs in / with a fixed environment.
func gitOutput(ctx context.Context, program, question string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, question)
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	cmd.Env = []string{
		"PATH=/usr/bin:/bin:/usr/local/bin", "LC_ALL=C", "HOME=/nonexistent", "XDG_CONFIG_HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CEILING_DIRECTORIES=/",
	}
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("%w: %.200q", err, exit.Stderr)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line, err
}

// parseGit parses "git version 2.39.5" and ignores the suffix that distributors append.
func parseGit(s string) (major, minor int, err error) {
	rest, ok := strings.CutPrefix(s, "git version ")
	if _, err := fmt.Sscanf(rest, "%d.%d", &major, &minor); !ok || err != nil || major < 0 || minor < 0 {
		return 0, 0, fmt.Errorf("%.80q is not a version of git", s)
	}
	return major, minor, nil
}
