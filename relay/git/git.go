// Package git runs git in bare repositories: with a fixed environment and configuration, in jobs that see one repository and, at
// /view or /mirror, the one whose objects it borrows or copies. It also has refs, packet lines, and the connections of requests.
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
)

// Where jobs see their directories.
const (
	workDir   = "/work"
	viewDir   = "/view"
	MirrorDir = "/mirror"
)

// A Repo is a bare repository, and how git is run in it.
type Repo struct {
	Dir  string   // the repository
	View string   // the one whose objects it borrows; "" for none
	Env  []string // besides the fixed environment, as "GIT_OBJECT_DIRECTORY=…"
	Tmp  string   // for temporary files that are in no repository; "" for none
}

// gitConfig is what every call of git is told, over whatever a repository's own file says. uploadpack.packObjectsHook is not in it:
// git takes an empty one for a program, and takes it from no repository's file.
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
	"core.alternateRefsCommand=true", // an empty one would be run
	"core.logAllRefUpdates=false",
	"core.bigFileThreshold=16m", // what is larger is streamed
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
	"transfer.unpackLimit=1", // objects stay in packs: a small push can be a hundred thousand files
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

// gitPrograms is where git may be. Nothing is asked of PATH.
var gitPrograms = []string{"/usr/bin/git", "/usr/local/bin/git", "/bin/git"}

// gitProgram returns the path of git, or the first of gitPrograms if there is none.
var gitProgram = sync.OnceValue(func() string {
	for _, p := range gitPrograms {
		if unix.Access(p, unix.X_OK) == nil {
			return p
		}
	}
	return gitPrograms[0]
})

// Git returns a command that is not yet started: git with a fixed environment and configuration, in r's directory, killed when ctx
// ends. args are never a stranger's, except after "--end-of-options" or "--", and there only what validRef or ValidCommit accepts.
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

// With returns r with more of an environment.
func (r Repo) With(env ...string) Repo {
	r.Env = append(slices.Clip(r.Env), env...)
	return r
}

// Bounds of what is kept of what git says.
const (
	maxGitOutput = 64 << 20
	MaxGitErrors = 16 << 10
)

// Output runs git with stdin and returns what it writes, at most maxGitOutput. The error has what git said.
func (r Repo) Output(ctx context.Context, stdin string, args ...string) ([]byte, error) {
	cmd := r.Git(ctx, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out := &bounded{limit: maxGitOutput}
	said := &Tail{Limit: MaxGitErrors}
	cmd.Stdout, cmd.Stderr = out, said
	err := cmd.Run()
	if out.full {
		return nil, caisson.Errorf(caisson.Exhausted, "git %s says more than %v", args[0], caisson.Size(maxGitOutput))
	}
	return out.buf.Bytes(), GitError(args[0], said, err)
}

// GitError explains why a command of git failed; nil if err is.
func GitError(what string, said *Tail, err error) error {
	if err == nil {
		return nil
	}
	text := said.String()
	if strings.Contains(text, "out of memory") || strings.Contains(text, "Cannot allocate memory") || strings.Contains(text, "unable to create threaded") {
		return caisson.Wrap(errors.Join(err, errors.New(Plain(text, 1000))), caisson.Exhausted, "git %s needed more memory than it may have", what)
	}
	if strings.Contains(text, "No space left on device") || strings.Contains(text, "Disk quota exceeded") {
		return caisson.Wrap(errors.Join(err, errors.New(Plain(text, 1000))), caisson.Exhausted, "git %s: no space is left for the repository", what)
	}
	return caisson.Wrap(err, caisson.Internal, "git %s: %s", what, Plain(text, 300))
}

// A bounded keeps the first limit bytes, and fails the write that is one too many.
type bounded struct {
	buf   bytes.Buffer
	limit int
	full  bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.buf.Len()+len(p) > b.limit {
		b.full = true
		return 0, errors.New("too much output")
	}
	return b.buf.Write(p)
}

// A Tail keeps about the last limit bytes written to it: git says at the end why it fails. It is safe for concurrent use.
type Tail struct {
	mu    sync.Mutex
	buf   []byte
	Limit int
}

func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p[max(0, len(p)-t.Limit):]...)
	if len(t.buf) > 2*t.Limit {
		t.buf = slices.Clone(t.buf[len(t.buf)-t.Limit:])
	}
	return len(p), nil
}

func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf[max(0, len(t.buf)-t.Limit):])
}

// LastLines returns what git said at last, without the progress before it.
func LastLines(text string, limit int) string {
	var kept []string
	for line := range strings.FieldsFuncSeq(text, func(c rune) bool { return c == '\n' || c == '\r' }) {
		if strings.HasPrefix(line, "error:") || strings.HasPrefix(line, "fatal:") {
			kept = append(kept, line)
		}
	}
	if len(kept) == 0 {
		return Plain(text, limit)
	}
	return Plain(strings.Join(kept, "; "), limit)
}
