package check

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// checkContents checks the new contents of all changed files, except those that are denied already.
func (c *checker) checkContents(ctx context.Context) error {
	rules, err := LoadSecretRules()
	if err != nil {
		return caisson.Wrap(err, caisson.Internal, "the rules for secrets cannot be read")
	}
	timed, cancel := context.WithDeadline(ctx, c.scanDeadline())
	defer cancel()
	var scans errgroup.Group
	scans.SetLimit(runtime.GOMAXPROCS(0))
	for i := range c.changes {
		ch := &c.changes[i]
		if ch.Type != fsat.TypeFile || ch.Kind == caisson.ChangeMode || ch.Kind == caisson.ChangeRemoved || c.denied(i) {
			continue
		}
		if ch.Size > int64(c.rules.MaxScan) {
			c.add(i, checkSecret, caisson.VerdictAsk, 0, "the file is larger than %v, and was not searched for secrets", c.rules.MaxScan)
			continue
		}
		scans.Go(func() error {
			c.scan(timed, rules, i)
			return nil
		})
	}
	scans.Wait()
	return ctx.Err()
}

// denied reports whether the change i is denied already, so that its content need not be searched.
func (c *checker) denied(i int) bool {
	return slices.ContainsFunc(c.findings[i], func(f caisson.Finding) bool { return f.Verdict == caisson.VerdictDeny })
}

// scan checks the new content of the change i. It may be called concurrently for different changes.
func (c *checker) scan(ctx context.Context, rules *SecretRules, i int) {
	ch := &c.changes[i]
	unseen := func(why string) {
		c.add(i, checkSecret, caisson.VerdictDeny, 0, "the file was not searched for secrets: %s", why)
	}
	defer func() {
		if recover() != nil {
			unseen("the search broke down")
		}
	}()
	if ctx.Err() != nil {
		unseen("the time for all files was over; apply the others, then look again, or raise scanTime")
		return
	}
	text, err := c.content(ch)
	if err != nil {
		unseen(caisson.MessageOf(err))
		return
	}
	c.checkContentRules(i, text)
	c.checkDirection(i, text)
	found, err := rules.find(ctx, ch.Path, text)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		unseen("it took too long; raise scanTime if that is wanted")
	} else if err != nil {
		unseen(caisson.MessageOf(err))
	}
	if len(found) == 0 {
		return
	}
	old := c.oldContent(ch)
	for _, s := range found {
		if s.text != "" && bytes.Contains(old, []byte(s.text)) {
			continue // the old file contains the same secret, so the change does not add it
		}
		c.add(i, checkSecret, c.rules.secretVerdict(ch.Path), s.Line, secretMessage, s.Rule, s.description)
	}
}

// content returns the new content of the changed file ch.
func (c *checker) content(ch *caisson.Change) (string, error) {
	r, err := c.read(ch.Hash)
	if err != nil {
		return "", err
	}
	defer r.Close()
	var b bytes.Buffer
	b.Grow(int(min(max(ch.Size, 0), maxScan)) + bytes.MinRead)
	if _, err := io.Copy(&b, io.LimitReader(r, int64(c.rules.MaxScan)+1)); err != nil {
		return "", err
	}
	if b.Len() > int(c.rules.MaxScan) {
		return "", caisson.Errorf(caisson.Conflict, "it is larger than was announced")
	}
	return b.String(), nil
}

// oldContent returns the old content of the file that ch changes, or nil if there is none.
func (c *checker) oldContent(ch *caisson.Change) []byte {
	path := cmp.Or(ch.OldPath, ch.Path)
	if ch.OldType != fsat.TypeFile || !fsat.ValidPath(path) {
		return nil
	}
	return c.tree.base.Content(path, int64(c.rules.MaxScan))
}
