package receive

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/job/relay/commit"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/quarantine"
)

// Limits of the commands of a push.
const (
	maxCommands     = 64       // commands, one for each ref
	maxCommandBytes = 64 << 10 // bytes of all commands
	maxPushedRefs   = 1000     // refs that a store may have in addition to the granted ones
)

// pushCapabilities are the capabilities advertised to clients. They do not include push-options and push-cert, so that clients do
// not use them.
const pushCapabilities = "report-status report-status-v2 side-band-64k quiet atomic ofs-delta delete-refs agent=caisson object-format="

// Formats maps the length of an object name in bytes to the name of the hash.
var Formats = map[int]string{20: "sha1", 32: "sha256"}

// isZero reports whether id is all zeros.
func isZero(id string) bool { return strings.Trim(id, "0") == "" }

// storeRefs returns the refs of a store and the length of its object names in bytes.
func storeRefs(ctx context.Context, store git.Repo) (refs map[string]string, idSize int, err error) {
	digits, err := store.Digits()
	if err != nil {
		return nil, 0, caisson.Wrap(err, caisson.Internal, "the store cannot be read")
	}
	all, err := store.Refs(ctx)
	if err != nil {
		return nil, 0, err
	}
	refs = map[string]string{}
	for _, r := range all.Refs {
		refs[r.Name] = r.Commit
	}
	return refs, digits / 2, nil
}

// advertise writes the body of the answer to GET /info/refs?service=git-receive-pack.
func advertise(w io.Writer, refs map[string]string, idSize int) error {
	var b bytes.Buffer
	names := slices.Sorted(maps.Keys(refs))
	caps := "\x00" + pushCapabilities + Formats[idSize]
	err := errors.Join(git.WritePktf(&b, "# service=git-receive-pack\n"), git.WriteFlush(&b))
	for _, name := range names {
		err = errors.Join(err, git.WritePktf(&b, "%s %s%s\n", refs[name], name, caps))
		caps = ""
	}
	if len(names) == 0 {
		err = errors.Join(err, git.WritePktf(&b, "%s capabilities^{}%s\n", quarantine.ZeroID(idSize), caps))
	}
	if err = errors.Join(err, git.WriteFlush(&b)); err != nil {
		return err
	}
	_, err = w.Write(b.Bytes())
	return err
}

// readCommands reads the commands at the beginning of the body, which the pack follows. It returns a Denied error for a malformed
// push, or the error of the body.
func (p *pushState) readCommands() error {
	p.caps = map[string]bool{}
	lines := git.NewPktReader(p.body, maxCommandBytes)
	var wrong error
	for {
		line, kind, err := lines.Next()
		switch {
		case errors.Is(err, io.EOF) && len(p.commands) == 0 && wrong == nil:
			return nil
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return quarantine.Deniedf("the push is cut off")
		case errors.Is(err, git.ErrPkt):
			return quarantine.Deniedf("the push does not speak git's protocol: %v", err)
		case err != nil:
			return err
		case kind == git.PktFlush:
			return wrong
		case kind != git.PktLine:
			return quarantine.Deniedf("the push does not speak version 0 of git's protocol")
		}
		// The commands after an invalid one are read, too, so that the answer can list all refs and has the requested format.
		if err := p.parseCommand(strings.TrimSuffix(string(line), "\n")); err != nil && wrong == nil {
			wrong = err
		}
	}
}

// parseCommand parses one command line.
func (p *pushState) parseCommand(line string) error {
	if text, caps, ok := strings.Cut(line, "\x00"); ok && len(p.commands) == 0 {
		line = text
		for c := range strings.FieldsSeq(caps) {
			p.caps[c] = true
		}
	}
	switch {
	case strings.HasPrefix(line, "shallow "):
		return quarantine.Deniedf("pushes from shallow clones are not taken; run git fetch --unshallow and push again")
	case strings.HasPrefix(line, "push-cert"):
		return quarantine.Deniedf("signed pushes are not taken; push without --signed")
	case p.caps["push-options"]:
		return quarantine.Deniedf("push options are not taken; push without them")
	}
	f := strings.SplitN(line, " ", 3)
	if len(f) != 3 || !p.objectID(f[0]) || !p.objectID(f[1]) || f[2] == "" || len(f[2]) > 2*refname.MaxLength {
		return quarantine.Deniedf("the push has a command that is none")
	}
	for c := range p.caps {
		if format, ok := strings.CutPrefix(c, "object-format="); ok && format != Formats[p.idSize] {
			return quarantine.Deniedf("the repository's objects have names of %s, and those of the push of %.20q", Formats[p.idSize], format)
		}
	}
	if len(p.commands) == maxCommands {
		return quarantine.Deniedf("the push has more than %d refs; push fewer at a time", maxCommands)
	}
	if slices.ContainsFunc(p.commands, func(c *pushCommand) bool { return c.name == f[2] }) {
		return quarantine.Deniedf("the push has the ref %.200q twice", f[2])
	}
	p.commands = append(p.commands, &pushCommand{name: f[2], old: f[0], new: f[1], findings: commit.NewFindings(commit.MaxFindings)})
	return nil
}

// objectID reports whether s is an object name of the store's format, or all zeros.
func (p *pushState) objectID(s string) bool {
	return len(s) == 2*p.idSize && (isZero(s) || git.ValidCommit(s))
}

// checkRefs refuses commands that are not allowed, regardless of the pushed commits.
func (p *pushState) checkRefs(ctx context.Context) {
	for _, c := range p.commands {
		if c.refused = p.refusalReason(ctx, c); c.refused != "" {
			p.denials.Add(commit.DeniedFinding(commit.CheckName, fmt.Sprintf("%s: %s", commit.ShownPath(c.name), c.refused)))
		}
	}
}

// refusalReason returns why a command is not allowed, regardless of the pushed commits; "" if it is allowed.
func (p *pushState) refusalReason(ctx context.Context, c *pushCommand) string {
	branch, isBranch := strings.CutPrefix(c.name, "refs/heads/")
	working := branch == p.req.Branch && isBranch
	granted := slices.ContainsFunc(p.req.Granted, func(r git.Ref) bool { return r.Name == c.name })
	have := cmp.Or(p.refs[c.name], quarantine.ZeroID(p.idSize))
	switch {
	case !isBranch:
		return fmt.Sprintf("only branches are taken, as %s", git.OneLine(p.req.Branch, 200))
	case !refname.ValidFull(c.name):
		return "this is no name for a branch"
	case granted && !working:
		return fmt.Sprintf("this branch is only to be read; push to %s", git.OneLine(p.req.Branch, 200))
	case c.removes() && working:
		return "the branch that is worked on is not removed"
	case c.old != have:
		return "the branch is somewhere else than the push expects; fetch first"
	case c.removes() && isZero(have):
		return "there is no such branch"
	case isZero(have) && len(p.refs) >= len(p.req.Granted)+maxPushedRefs:
		return "there are too many branches; remove some"
	}
	if _, err := p.store.Output(ctx, "", "check-ref-format", c.name); err != nil {
		return "this is no name for a branch"
	}
	return ""
}
