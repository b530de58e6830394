// Package push sends commits of a store to a remote.
package push

import (
	"context"
	"regexp"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/excerpt"
	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/remote"
)

// A Request has the parameters of a push.
type Request struct {
	Transport remote.Protocol // protocol between the transport and the remote
	Commit    string          // commit of the store or its view
	Branch    string          // branch of the remote, without "refs/heads/"
	Expect    string          // commit that the remote's branch must be at; "" if the branch must not exist
	Time      time.Duration   // time limit; 0 means 30 minutes
}

// check returns an Invalid error if q is not valid.
func (q *Request) check() error {
	switch {
	case !git.ValidCommit(q.Commit):
		return caisson.Invalidf("commit", "%.100q is not a commit", q.Commit)
	case !refname.ValidFull("refs/heads/" + q.Branch):
		return caisson.Invalidf("branch", "%.100q is not the name of a branch", q.Branch)
	case q.Expect != "" && !git.ValidCommit(q.Expect):
		return caisson.Invalidf("expect", "%.100q is not a commit", q.Expect)
	}
	return nil
}

// Result is the result of a successful push.
type Result struct {
	Already       bool   // whether the branch was at the commit before the push
	RemoteMessage string // message of the remote, as one line; it may contain the URL for opening a pull request
}

// maxPushAnswer limits what a remote may send during a push, in bytes: its refs and the output of its hooks.
const maxPushAnswer = 256 << 20

// push moves the branch of the remote to which f forwards.
func push(ctx context.Context, s git.Repo, f *remote.Forwarder, req Request) (*Result, error) {
	has, err := s.HasCommit(ctx, req.Commit)
	if err != nil {
		return nil, err
	}
	if !has {
		return nil, caisson.Errorf(caisson.NotFound, "the commit %s is not in the store", req.Commit)
	}
	f.Allow(maxPushAnswer)
	ref := "refs/heads/" + req.Branch
	cmd := s.With(f.Protocol()).Git(ctx, "push", "--porcelain", "--no-progress", "--no-verify", "--no-signed", "--no-follow-tags",
		"--recurse-submodules=no", "--force-with-lease="+ref+":"+req.Expect, "--end-of-options", f.URL(), req.Commit+":"+ref)
	said, out := &excerpt.Tail{Limit: git.MaxGitErrors}, &excerpt.Tail{Limit: git.MaxGitErrors}
	cmd.Stdout, cmd.Stderr = out, said
	err = cmd.Run()
	result := parsePush(out.String(), ref)
	switch {
	case result.flag == "=" && err == nil:
		return &Result{Already: true, RemoteMessage: result.remoteMessage(said)}, nil
	case result.flag != "" && result.flag != "!" && err == nil:
		return &Result{RemoteMessage: result.remoteMessage(said)}, nil
	case result.flag == "!":
		return nil, result.refusalError(req, said)
	}
	return nil, f.Explain(pushError(said, err))
}

// A pushResult is the line of git push --porcelain for one ref: "<flag>\t<from>:<to>\t<summary> (<reason>)".
type pushResult struct {
	flag    string // " ", "+", "*", "=" or "!"; "" if there is no line for the ref
	summary string // what happened to the ref, with the reason
}

// parsePush returns the result for ref in the output of git push --porcelain.
func parsePush(out, ref string) pushResult {
	for line := range strings.SplitSeq(out, "\n") {
		fields := strings.SplitN(line, "\t", 3)
		if len(fields) == 3 && len(fields[0]) == 1 && strings.HasSuffix(fields[1], ":"+ref) {
			return pushResult{flag: fields[0], summary: fields[2]}
		}
	}
	return pushResult{}
}

// refusalError returns the error for a ref that was rejected by the remote, or by git before sending.
func (r pushResult) refusalError(req Request, said *excerpt.Tail) error {
	reason := r.summary
	if words := r.remoteMessage(said); words != "" {
		reason += ": " + words
	}
	reason = git.OneLine(reason, 350)
	switch {
	case strings.Contains(r.summary, "stale info"), strings.Contains(r.summary, "fetch first"), strings.Contains(r.summary, "non-fast-forward") && strings.HasPrefix(r.summary, "[rejected]"):
		if req.Expect == "" {
			return caisson.Errorf(caisson.Conflict, "the remote has a branch %s already; push to another one", req.Branch)
		}
		return caisson.Errorf(caisson.Conflict, "the remote's branch %s is not at %.12s any more: another client has pushed to it", req.Branch, req.Expect)
	case !strings.HasPrefix(r.summary, "[remote rejected]"), // the remote has sent no report, or git gave up
		strings.Contains(r.summary, "cannot lock ref"), strings.Contains(r.summary, "failed to update ref"),
		strings.Contains(r.summary, "failed to lock"), strings.Contains(r.summary, "unpacker error"), strings.Contains(r.summary, "internal error"):
		return caisson.Errorf(caisson.Unavailable, "the remote could not take the push; try again: %s", reason)
	}
	return caisson.Errorf(caisson.Denied, "the remote refuses the push: %s", reason)
}

// remoteLine matches a line that the remote sent over the side band.
var remoteLine = regexp.MustCompile(`(?m)^remote: ?(.*?)\s*$`)

// remoteMessage returns the messages of the remote as one line.
func (r pushResult) remoteMessage(said *excerpt.Tail) string {
	var words []string
	for _, m := range remoteLine.FindAllStringSubmatch(said.String(), -1) {
		words = append(words, m[1])
	}
	return git.OneLine(strings.Join(words, " "), 300)
}

// pushError returns the error for a push without a result for its ref.
func pushError(said *excerpt.Tail, err error) error {
	if err == nil {
		return caisson.Errorf(caisson.Unavailable, "the remote did not report the result of the push; try again")
	}
	text := said.String()
	for _, s := range []string{"hung up unexpectedly", "unexpected disconnect", "early EOF", "RPC failed", "the remote end", "Connection reset", "Broken pipe", "unable to rewind", "Could not read from remote"} {
		if strings.Contains(text, s) {
			return caisson.Wrap(err, caisson.Unavailable, "the connection to the remote was lost during the push; try again: %s", git.ErrorLines(text, 200))
		}
	}
	return git.GitError("push", said, err)
}
