package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// reviewer prompts a person on a terminal to decide which changes are applied or dropped.
type reviewer struct {
	in        *bufio.Reader // the person's answers, one per line
	out       io.Writer     // receives changes and prompts
	color     bool          // use colours
	raw       bool          // do not escape the contents of files
	droppable bool          // changes may be dropped, because the sandbox is not running
	onPanic   func()        // deferred in goroutines that read from in, to restore the terminal after a panic; nil for none

	applyPassing bool                // apply all further changes that pass every check, without prompts
	apply        []caisson.Selection // the changes that the person has selected to be applied
	drop         []string            // paths of the changes that the person has selected to be dropped
	needsConsent bool                // the checks require a person's consent for a change in apply
}

// changeKeyHelp explains each key that answers the prompt for a change.
var changeKeyHelp = map[byte]string{
	'y': "apply it",
	'n': "leave it for later",
	's': "decide for each part of it",
	'd': "drop it: the sandbox's file is reset",
	'a': "apply it, and all later ones that pass every check without being shown",
	'q': "end the review, and apply what was chosen before",
	'?': "explain",
}

// hunkKeyHelp explains each key that answers the prompt for a hunk of a change.
var hunkKeyHelp = map[byte]string{
	'y': "apply this part",
	'n': "leave this part for later",
	'a': "apply this part and the later ones of the file",
	'd': "leave this part and the later ones of the file",
	'q': "end the review, and apply what was chosen before",
	'?': "explain",
}

// errStop ends a review at the user's request. The changes that were selected before are applied.
var errStop = errors.New("stop")

// review prompts for each change. Afterwards r.apply and r.drop contain the decisions. After an error, r.apply and r.drop must
// not be used.
func (r *reviewer) review(ctx context.Context, changes []caisson.Change) error {
	for i := range changes {
		err := r.reviewChange(ctx, &changes[i], fmt.Sprintf("%d/%d", i+1, len(changes)))
		if errors.Is(err, errStop) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reviewChange shows a change and prompts for a decision about it. place is its number among all changes, such as 2/5. It returns
// errStop if the user ends the review.
func (r *reviewer) reviewChange(ctx context.Context, ch *caisson.Change, place string) error {
	if r.applyPassing && ch.Verdict == caisson.VerdictPass {
		r.selectChange(ch, nil)
		return nil
	}
	hunks := splitHunks(ch.Patch)
	if err := r.show(func(p *patchPrinter) { p.change(ch) }); err != nil {
		return err
	}
	name := safetext.Escape(ch.Path)
	if !isApplicable(ch) && !r.droppable {
		_, err := fmt.Fprintf(r.out, "(%s) %s cannot be applied and remains in the workspace.\n", place, name)
		return err
	}
	question, can := "Apply this change to "+name+"?", "yn"
	if !isApplicable(ch) {
		question, can = name+" cannot be applied. Drop it?", "n"
	} else if len(hunks) > 1 && ch.Kind == caisson.ChangeModified && !ch.Binary {
		can += "s"
	}
	if r.droppable {
		can += "d"
	}
	if isApplicable(ch) {
		can += "a"
	}
	key, err := r.promptWithHelp(ctx, "("+place+") "+question, can+"q?", changeKeyHelp)
	if err != nil {
		return err
	}
	switch key {
	case 'y':
		r.selectChange(ch, nil)
	case 'a':
		r.applyPassing = true
		r.selectChange(ch, nil)
	case 'd':
		r.drop = append(r.drop, ch.Path)
	case 's':
		return r.reviewHunks(ctx, ch, hunks)
	case 'q':
		return errStop
	}
	return nil
}

// reviewHunks prompts for each hunk of a change. It returns errStop if the user ends the review; the hunks that were selected
// before are applied.
func (r *reviewer) reviewHunks(ctx context.Context, ch *caisson.Change, hunks []string) error {
	var wanted []int
	var stop error
	all := false
parts:
	for i, h := range hunks {
		if all {
			wanted = append(wanted, i)
			continue
		}
		if err := r.show(func(p *patchPrinter) { p.hunk(h) }); err != nil {
			return err
		}
		key, err := r.promptWithHelp(ctx, fmt.Sprintf("Part %d of %d of %s: apply it?", i+1, len(hunks), safetext.Escape(ch.Path)), "ynadq?", hunkKeyHelp)
		if err != nil {
			return err
		}
		switch key {
		case 'y':
			wanted = append(wanted, i)
		case 'a':
			wanted, all = append(wanted, i), true
		case 'd':
			break parts
		case 'q':
			stop = errStop
			break parts
		}
	}
	switch len(wanted) {
	case 0:
	case len(hunks):
		r.selectChange(ch, nil)
	default:
		r.selectChange(ch, wanted)
	}
	return stop
}

// selectChange adds a change to those that are to be applied. hunks are the indices of the hunks to apply; nil means the whole
// change.
func (r *reviewer) selectChange(ch *caisson.Change, hunks []int) {
	r.apply = append(r.apply, caisson.Selection{Path: ch.Path, Hash: ch.Hash, Hunks: hunks})
	r.needsConsent = r.needsConsent || ch.Verdict == caisson.VerdictAsk
}

// show calls write with a patchPrinter, and writes its output to the terminal.
func (r *reviewer) show(write func(*patchPrinter)) error {
	var b strings.Builder
	write(&patchPrinter{&b, r.color, r.raw})
	_, err := io.WriteString(r.out, b.String())
	return err
}

// promptWithHelp prints question and reads lines until one consists of one of the keys in can, which it returns. For the key '?',
// it prints the explanations in meaning and prompts again.
func (r *reviewer) promptWithHelp(ctx context.Context, question, can string, meaning map[byte]string) (byte, error) {
	for {
		key, err := r.promptKey(ctx, question, can)
		if err != nil || key != '?' {
			return key, err
		}
		for _, k := range []byte(can) {
			fmt.Fprintf(r.out, "  %c  %s\n", k, meaning[k])
		}
	}
}

// promptKey prints question and reads lines until one consists of one of the keys in can, which it returns. It returns an error
// at the end of the input.
func (r *reviewer) promptKey(ctx context.Context, question, can string) (byte, error) {
	for {
		prompt := colorize(r.color, "01", question+" ["+strings.Join(strings.Split(can, ""), ",")+"]") + " "
		if _, err := io.WriteString(r.out, prompt); err != nil {
			return 0, err
		}
		text, err := await(ctx, func() (string, error) {
			if r.onPanic != nil {
				defer r.onPanic()
			}
			return r.in.ReadString('\n')
		})
		switch answer := strings.ToLower(strings.TrimSpace(text)); {
		case ctx.Err() != nil:
			fmt.Fprintln(r.out)
			return 0, context.Cause(ctx)
		case len(answer) == 1 && strings.Contains(can, answer):
			return answer[0], nil
		case errors.Is(err, io.EOF):
			return 0, caisson.Errorf(caisson.Conflict, "the review ended before its end; nothing was applied")
		case err != nil:
			return 0, err
		}
	}
}
