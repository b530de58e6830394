package receive

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/excerpt"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/quarantine"
)

// commit moves the objects of a push into the store and updates its refs. It prepares the update of all refs first, then moves
// the objects, and then commits the update.
func (p *pushState) commit(ctx context.Context, q *quarantine.Quarantine, todo []*pushCommand) error {
	cmd := q.Repo.Git(ctx, "update-ref", "--stdin", "-z")
	said := &excerpt.Tail{Limit: git.MaxGitErrors}
	cmd.Stderr = said
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return caisson.Wrap(err, caisson.Internal, "git cannot be started")
	}
	answers := bufio.NewReader(out)
	err = func() error {
		defer in.Close()
		if err := gitCommand(in, answers, "start\x00", "start: ok"); err != nil {
			return err
		}
		if err := gitCommand(in, answers, refCommands(todo)+"prepare\x00", "prepare: ok"); err != nil {
			return err
		}
		if err := q.Migrate(); err != nil {
			return err
		}
		return gitCommand(in, answers, "commit\x00", "commit: ok")
	}()
	if e := cmd.Wait(); err == nil {
		err = e
	}
	if err == nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	text := git.OneLine(said.String(), 300)
	if strings.Contains(text, "cannot lock ref") || strings.Contains(text, "exists; cannot create") || strings.Contains(text, "multiple updates") {
		return caisson.Wrap(err, caisson.Conflict, "the branches cannot be moved: %s", strings.TrimPrefix(text, "fatal: prepare: "))
	}
	return caisson.Wrap(errors.Join(err, errors.New(text)), caisson.Internal, "the branches cannot be moved")
}

// refCommands returns the input for git update-ref that creates, moves or deletes the refs of todo if they have their old values.
func refCommands(todo []*pushCommand) string {
	var b strings.Builder
	for _, c := range todo {
		if c.removes() {
			b.WriteString("delete " + c.name + "\x00" + c.old + "\x00")
			continue
		}
		b.WriteString("update " + c.name + "\x00" + c.new + "\x00" + c.old + "\x00")
	}
	return b.String()
}

// gitCommand sends text to git and returns an error unless git answers with the line want.
func gitCommand(in io.Writer, out *bufio.Reader, text, want string) error {
	if _, err := io.WriteString(in, text); err != nil {
		return err
	}
	line, err := out.ReadString('\n')
	if err != nil {
		return err
	}
	if strings.TrimSuffix(line, "\n") != want {
		return errors.New("git printed " + git.OneLine(line, 100))
	}
	return nil
}
