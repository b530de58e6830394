package repos

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/excerpt"
)

// collectTime is the time limit of a script that commits and pushes the changes in a sandbox's clone.
const collectTime = 10 * time.Minute

// collectScript is a shell script that commits the changes in a sandbox's clone, and pushes HEAD to the relay.
const collectScript = `set -eu
dir=$1 url=$2 branch=$3 subject=$4
cd "$dir"
git add -A
git diff --cached --quiet || git -c core.hooksPath=/dev/null -c commit.gpgSign=false commit -q --no-verify -m "$subject"
git -c core.hooksPath=/dev/null push -q "$url" "+HEAD:refs/heads/$branch"
`

// collectMoreScript is a shell script that commits the changes in a clone, and pushes HEAD to the relay, if HEAD descends from
// the commit that was pushed before. Otherwise a push would discard that commit: the script fails, unless nothing is to push.
const collectMoreScript = `set -eu
dir=$1 url=$2 branch=$3 subject=$4 pushed=$5
cd "$dir"
dirty=$(git status --porcelain)
follows=
known="--remotes=origin"
if git cat-file -e "$pushed^{commit}" 2>/dev/null; then
	known="$known $pushed"
	if git merge-base --is-ancestor "$pushed" HEAD; then follows=1; fi
fi
if [ -z "$dirty" ] && [ -z "$(git rev-list -n 1 HEAD --not $known)" ]; then exit 0; fi
if [ -z "$follows" ]; then echo "it does not follow the commit $pushed, which was pushed" >&2; exit 1; fi
if [ -n "$(git ls-files -u)" ]; then echo "a merge is not finished" >&2; exit 1; fi
git add -A
git diff --cached --quiet || git -c core.hooksPath=/dev/null -c commit.gpgSign=false commit -q --no-verify -m "$subject"
git -c core.hooksPath=/dev/null push -q "$url" "HEAD:refs/heads/$branch"
`

// sandboxGit runs git in sandboxes.
type sandboxGit struct {
	// exec starts a process in a sandbox.
	exec func(ctx context.Context, sandbox string, req caisson.ExecRequest) (caisson.Process, error)
	dirs *directories // directories of the repositories on the host, with the views that are cloned into sandboxes
}

// collect commits the changes in the clone at dir, and pushes HEAD to the grant's branch.
func (x *sandboxGit) collect(ctx context.Context, g *grant, dir, subject string) error {
	return x.push(ctx, g, collectScript, dir, relayURL+g.Repo, g.Branch, subject)
}

// push runs a shell script that pushes to the relay, in the sandbox of a grant. If the relay refuses the push, the error contains
// the relay's messages.
func (x *sandboxGit) push(ctx context.Context, g *grant, script string, args ...string) error {
	err := x.run(ctx, g, collectTime, script, nil, args...)
	if failed, ok := errors.AsType[*gitError](err); ok {
		if answers := remoteLines(failed.said); answers != "" {
			return caisson.Errorf(caisson.Denied, "the push was refused; git in the sandbox reports: %s; the commits are still in the sandbox: "+
				"remove them with git reset --soft to the last accepted commit, fix them, and deliver again", plainLine(answers, maxOutput))
		}
	}
	return err
}

// A gitError is the cause of an error about a script that has failed.
type gitError struct{ said string } // the end of the script's output, which is untrusted

func (e *gitError) Error() string { return plainLine(e.said, maxOutput) }

// collectMore commits the changes in the clone at dir, and pushes HEAD to the grant's branch, if HEAD descends from pushed, the
// commit that was pushed before. Otherwise it returns Denied, or nil if there is nothing to push.
func (x *sandboxGit) collectMore(ctx context.Context, g *grant, dir, subject, pushed string) error {
	err := x.push(ctx, g, collectMoreScript, dir, relayURL+g.Repo, g.Branch, subject, pushed)
	if err != nil {
		return caisson.Wrap(err, caisson.Denied, "the work in %.200q that was not pushed could not be fetched: %s", dir, caisson.MessageOf(err))
	}
	return nil
}

// run runs a shell script in the sandbox of a grant, for at most the time most, with input as its standard input unless that is
// nil. Untrusted text is in args only, never in script.
func (x *sandboxGit) run(ctx context.Context, g *grant, most time.Duration, script string, input io.Reader, args ...string) error {
	ctx = caisson.WithCaller(ctx, caisson.DaemonCaller(g.Account, "use git in a sandbox"))
	p, err := x.exec(ctx, string(g.Sandbox), caisson.ExecRequest{
		Command: append([]string{"sh", "-c", script, "git"}, args...), Timeout: caisson.Duration(most), Workdir: "/", Stdin: input != nil,
		Env: map[string]string{"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
	})
	if err != nil {
		return err
	}
	defer p.Close()
	out, errs, written := make(chan string, 1), make(chan string, 1), make(chan error, 1)
	go func() { out <- excerpt.ReadTail(p.Stdout(), maxOutput) }()
	go func() { errs <- excerpt.ReadTail(p.Stderr(), maxOutput) }()
	go func() { written <- writeInput(p.Stdin(), input) }()
	status, err := p.Wait(ctx)
	p.Close() // ends the reads: children of the script may still have its output open
	if err != nil || status.Success() {
		return errors.Join(err, <-written)
	}
	cause := &gitError{<-errs + "\n" + <-out}
	return caisson.Wrap(cause, caisson.Denied, "git in the sandbox %s; its last output: %s", status, cause)
}

// remoteLines returns the lines of git's output that are marked as from the remote, joined; "" if there are none. A program in
// the sandbox can forge such lines.
func remoteLines(said string) string {
	var answers []string
	for line := range strings.Lines(said) {
		if text, ok := strings.CutPrefix(line, "remote: "); ok && strings.TrimSpace(text) != "" {
			answers = append(answers, strings.TrimSpace(text))
		}
	}
	return strings.Join(answers, "; ")
}

// maxOutput is the maximum number of bytes of git's output in an error about git in a sandbox.
const maxOutput = 1200

// writeInput copies input, unless it is nil, to the standard input of a process. Returns Unavailable if the process does not read
// all of it.
func writeInput(to io.WriteCloser, input io.Reader) error {
	if input == nil {
		return nil
	}
	if _, err := io.Copy(to, input); err != nil {
		return caisson.Wrap(err, caisson.Unavailable, "git in the sandbox did not read all of its input")
	}
	to.Close() // the error is ignored: it would not say whether the process has read the input
	return nil
}
