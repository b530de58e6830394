// Package git runs git in bare repositories with a fixed environment and configuration. Jobs have access to one repository and,
// at /view or /mirror, the one whose objects it borrows or copies. The package also has refs, packet lines, and the connections
// over which requests arrive.
package git

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/excerpt"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// Paths at which jobs have their directories.
const (
	workDir   = "/work"   // the repository that the job works on
	viewDir   = "/view"   // the view whose objects the repository at workDir borrows
	MirrorDir = "/mirror" // the mirror whose objects the job copies
)

// A Repo is a bare repository with the settings for running git in it.
type Repo struct {
	Dir  string   // path of the repository
	View string   // path of the repository whose objects this one borrows; "" for none
	Env  []string // added to the fixed environment, such as "GIT_OBJECT_DIRECTORY=…"
	Tmp  string   // directory for temporary files outside all repositories; "" for none
}

// gitConfig is the configuration of every git command; it overrides the repository's configuration file. It does not set
// uploadpack.packObjectsHook, because git would run an empty value as a program and never reads the setting from a repository's
// file.
var gitConfig = []string{
	"core.hooksPath=/dev/null",
	"core.fsmonitor=false",
	"core.sshCommand=/bin/false",
	"core.gitProxy=",
	"core.askPass=/bin/false",
	"core.attributesFile=/dev/null",
	"core.excludesFile=/dev/null",
	"core.pager=cat",
	"core.editor=/bin/false",
	"core.alternateRefsCommand=true", // the program true, because git would run an empty value as a program
	"core.logAllRefUpdates=false",
	"core.bigFileThreshold=16m", // git streams larger files
	"core.packedGitLimit=256m",
	"core.deltaBaseCacheLimit=64m",
	"core.useReplaceRefs=false",
	"core.protectHFS=true",
	"core.protectNTFS=true",
	"core.sharedRepository=false",
	"credential.helper=",
	"credential.interactive=false",
	"protocol.allow=never",
	"gc.auto=0",
	"maintenance.auto=false",
	"safe.directory=*",
	"safe.bareRepository=all",
	"submodule.recurse=false",
	"fetch.recurseSubmodules=false",
	"push.recurseSubmodules=no",
	"push.gpgSign=false",
	"push.followTags=false",
	"push.autoSetupRemote=false",
	"commit.gpgSign=false",
	"log.showSignature=false",
	"pack.threads=2",
	"pack.windowMemory=64m",
	"index.threads=1",
	"transfer.fsckObjects=true",
	"fetch.fsckObjects=true",
	"receive.fsckObjects=true",
	"transfer.unpackLimit=1", // keep objects in packs: a small push can have a hundred thousand files
	"fetch.unpackLimit=1",
	"receive.unpackLimit=1",
	"transfer.advertiseSID=false",
	"transfer.bundleURI=false",
	"http.followRedirects=false",
	"http.proxy=",
	"http.emptyAuth=false",
	"http.cookieFile=",
	"http.saveCookies=false",
	"advice.detachedHead=false",
	"color.ui=false",
	"column.ui=never",
	"diff.external=",
	"trace2.eventTarget=0",
}

// gitPrograms are the paths at which git is looked up. PATH is not used.
var gitPrograms = []string{"/usr/bin/git", "/usr/local/bin/git", "/bin/git"}

// gitProgram returns the path of git, or /usr/bin/git if git is not installed.
var gitProgram = sync.OnceValue(func() string {
	for _, p := range gitPrograms {
		if unix.Access(p, unix.X_OK) == nil {
			return p
		}
	}
	return gitPrograms[0]
})

// Git returns a git command that is not started yet. It runs in r's directory with a fixed environment and configuration, and is
// killed when ctx ends. args must not contain untrusted text, except after "--end-of-options" or "--", and there only text that
// refname.ValidFull or ValidCommit accepts.
func (r Repo) Git(ctx context.Context, args ...string) *exec.Cmd {
	full := make([]string, 0, 2*len(gitConfig)+len(args)+1)
	for _, c := range gitConfig {
		full = append(full, "-c", c)
	}
	cmd := exec.CommandContext(ctx, gitProgram(), append(full, args...)...)
	cmd.Dir = r.Dir
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = []string{
		"PATH=/usr/bin:/bin:/usr/local/bin",
		"LC_ALL=C",
		"HOME=/nonexistent",
		"XDG_CONFIG_HOME=/nonexistent",
		"GIT_DIR=" + r.Dir,
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_ASKPASS=/bin/false",
		"SSH_ASKPASS=/bin/false",
		"GIT_OPTIONAL_LOCKS=0",
		"GIT_PROTOCOL_FROM_USER=0",
		"GIT_NO_REPLACE_OBJECTS=1",
		"GIT_NO_LAZY_FETCH=1",
		"GIT_ADVICE=0",
		"GIT_FLUSH=1",
		"TZ=UTC",
	}
	if !slices.ContainsFunc(r.Env, func(e string) bool { return strings.HasPrefix(e, "GIT_ALLOW_PROTOCOL=") }) {
		cmd.Env = append(cmd.Env, "GIT_ALLOW_PROTOCOL=none")
	}
	if r.Tmp != "" {
		cmd.Env = append(cmd.Env, "TMPDIR="+r.Tmp)
	}
	cmd.Env = append(cmd.Env, r.Env...)
	return cmd
}

// With returns a copy of r with env added to its environment.
func (r Repo) With(env ...string) Repo {
	r.Env = append(slices.Clip(r.Env), env...)
	return r
}

// Limits of the stored output of git.
const (
	maxGitOutput = 64 << 20 // bytes of the standard output
	MaxGitErrors = 16 << 10 // bytes of the error output
)

// Output runs git with stdin and returns its standard output, at most 64 MiB. The error contains git's error output.
func (r Repo) Output(ctx context.Context, stdin string, args ...string) ([]byte, error) {
	cmd := r.Git(ctx, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out := &limitedBuffer{limit: maxGitOutput}
	said := &excerpt.Tail{Limit: MaxGitErrors}
	cmd.Stdout, cmd.Stderr = out, said
	err := cmd.Run()
	if out.full {
		return nil, caisson.Errorf(caisson.Exhausted, "git %s prints more than %v", args[0], caisson.Size(maxGitOutput))
	}
	return out.buf.Bytes(), GitError(args[0], said, err)
}

// GitError returns an error that explains why a git command failed, or nil if err is nil.
func GitError(what string, said *excerpt.Tail, err error) error {
	if err == nil {
		return nil
	}
	text := said.String()
	if strings.Contains(text, "out of memory") || strings.Contains(text, "Cannot allocate memory") || strings.Contains(text, "unable to create threaded") {
		return caisson.Wrap(errors.Join(err, errors.New(OneLine(text, 1000))), caisson.Exhausted, "git %s needed more memory than it may have", what)
	}
	if strings.Contains(text, "No space left on device") || strings.Contains(text, "Disk quota exceeded") {
		return caisson.Wrap(errors.Join(err, errors.New(OneLine(text, 1000))), caisson.Exhausted, "git %s: no space is left for the repository", what)
	}
	return caisson.Wrap(err, caisson.Internal, "git %s: %s", what, OneLine(text, 300))
}

// limitedBuffer stores at most limit bytes; a write that exceeds the limit fails.
type limitedBuffer struct {
	buf   bytes.Buffer
	limit int
	full  bool // whether a write has exceeded the limit
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.buf.Len()+len(p) > b.limit {
		b.full = true
		return 0, errors.New("too much output")
	}
	return b.buf.Write(p)
}

// ErrorLines returns the lines of git's output that begin with "error:" or "fatal:", or all of text if there are none, as one
// line of at most limit bytes.
func ErrorLines(text string, limit int) string {
	var kept []string
	for line := range strings.FieldsFuncSeq(text, func(c rune) bool { return c == '\n' || c == '\r' }) {
		if strings.HasPrefix(line, "error:") || strings.HasPrefix(line, "fatal:") {
			kept = append(kept, line)
		}
	}
	if len(kept) == 0 {
		return OneLine(text, limit)
	}
	return OneLine(strings.Join(kept, "; "), limit)
}

// OneLine returns output of a remote or of git as one line of at most limit bytes, followed by "…" if it was truncated.
func OneLine(s string, limit int) string { return safetext.Short(safetext.Line(s), limit) }
