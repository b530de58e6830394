package repos

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/tail"
)

// collectTime is how long git in a sandbox may take to push what it has.
const collectTime = 10 * time.Minute

// collectScript commits what the agent has done and not committed, and pushes where it has got to.
const collectScript = `set -eu
dir=$1 url=$2 branch=$3 subject=$4
cd "$dir"
git add -A
git diff --cached --quiet || git -c core.hooksPath=/dev/null -c commit.gpgSign=false commit -q --no-verify -m "$subject"
git -c core.hooksPath=/dev/null push -q "$url" "+HEAD:refs/heads/$branch"
`

// collectMoreScript does so for what follows what was pushed. What does not follow it would take it back: that is for somebody to look at.
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

// collect has a sandbox push what is in dir and was not pushed.
func (c grants) collect(ctx context.Context, g *grant, dir, subject string) error {
	return c.guest(ctx, g, collectTime, collectScript, nil, dir, host+g.Repo, g.Branch, subject)
}

// collectMore has a sandbox push what is in dir and follows a commit that it has pushed.
func (c grants) collectMore(ctx context.Context, g *grant, dir, subject, pushed string) error {
	err := c.guest(ctx, g, collectTime, collectMoreScript, nil, dir, host+g.Repo, g.Branch, subject, pushed)
	if err != nil {
		return caisson.Wrap(err, caisson.Denied, "what was not pushed in %.200q could not be taken: %s", dir, caisson.MessageOf(err))
	}
	return nil
}

// guest runs a script in a sandbox, with input unless that is nil. What comes from strangers is in its arguments.
func (c grants) guest(ctx context.Context, g *grant, most time.Duration, script string, input io.Reader, args ...string) error {
	ctx = caisson.WithCaller(ctx, caisson.OwnWork(g.Account, "use git in a sandbox"))
	p, err := c.Exec(ctx, string(g.Sandbox), caisson.ExecRequest{
		Command: append([]string{"sh", "-c", script, "git"}, args...), Timeout: caisson.Duration(most), Workdir: "/", Stdin: input != nil,
		Env: map[string]string{"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
	})
	if err != nil {
		return err
	}
	defer p.Close()
	out, errs, sent := make(chan string, 1), make(chan string, 1), make(chan error, 1)
	go func() { out <- tail.Read(p.Stdout(), maxSaid) }()
	go func() { errs <- tail.Read(p.Stderr(), maxSaid) }()
	go func() { sent <- send(p.Stdin(), input) }()
	status, err := p.Wait(ctx)
	if err != nil || status.Success() {
		p.Close() // what it may have left running holds its streams
		return errors.Join(err, <-sent)
	}
	p.Close() // what it may have left running holds its streams
	said := line(<-errs+" "+<-out, maxSaid)
	return caisson.Errorf(caisson.Denied, "git in the sandbox %s; it said last: %s", status, said)
}

// maxSaid bounds what is kept of what git in a sandbox says, in bytes.
const maxSaid = 1200

// send writes input to a process that is to read all of it; nil is none.
func send(to io.WriteCloser, input io.Reader) error {
	if input == nil {
		return nil
	}
	if _, err := io.Copy(to, input); err != nil {
		return caisson.Wrap(err, caisson.Unavailable, "git in the sandbox did not read all that it was given")
	}
	to.Close() // that is the end; it says nothing of what was read
	return nil
}
