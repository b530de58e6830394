package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// diffCmd shows the changes in a workspace.
type diffCmd struct {
	workspaceArg
	Stat  bool     `help:"One line for each path." xor:"form"`
	Names bool     `help:"Only the paths." xor:"form"`
	Only  []string `help:"Only what matches: a name anywhere, like '*.go', or a path, like 'src/**' (** stands for any directories); may be repeated." placeholder:"GLOB" sep:"none"`
}

func (c *diffCmd) Help() string {
	return `Compares the workspace with the host's directory as it was when the workspace was created, and prints the verdict of the checks on each change:
a denied change is never applied, one that needs review is applied only by a person, and a conflict is a file that has also changed on
the host.

Characters that could deceive are shown as escapes. git apply takes the output where there are none, else with --raw-tty.

` + examples("caisson diff", "caisson diff --stat rn-abcdefghijklmnop", "caisson diff --only 'src/**' web", "caisson diff -o json | jq -r '.changes[].path'")
}

func (c *diffCmd) Run(ctx context.Context, a *app, api api) error {
	w, err := c.find(ctx, a, api)
	if isNotFound(err) && !c.Stat && !c.Names && len(c.Only) == 0 && a.globals.Output == "table" {
		if shown, runErr := c.runPatch(ctx, a, api); shown || runErr != nil {
			return runErr
		}
	}
	if err != nil {
		return err
	}
	d, err := api.Diff(ctx, string(w.ID), caisson.DiffRequest{Only: c.Only, Patch: !c.Stat && !c.Names})
	if err != nil {
		return err
	}
	warnTruncated(a, d)
	switch {
	case a.globals.Output == "jsonl":
		return printList[caisson.Change](a, d.Changes, nil)
	case a.globals.Output != "table":
		return a.encode(d)
	case c.Names || a.globals.Quiet:
		for _, ch := range d.Changes {
			if _, err := fmt.Fprintln(a.out, safetext.Escape(ch.Path)); err != nil {
				return err
			}
		}
		return nil
	case len(d.Changes) == 0:
		a.infof("caisson: nothing has changed")
		return nil
	case c.Stat:
		return printStat(a, d)
	}
	var b strings.Builder
	p := patchPrinter{&b, a.colorEnabled(), a.globals.RawTTY}
	for i := range d.Changes {
		p.change(&d.Changes[i])
	}
	_, err = fmt.Fprint(a.out, b.String())
	return err
}

// runPatch prints the patch in the result of the run whose id is the command's argument. It returns false if the argument is not
// the id of a run, or if the run has no patch. A run has a patch instead of a workspace if it worked on a copy of the directory.
func (c *diffCmd) runPatch(ctx context.Context, a *app, api api) (bool, error) {
	id, err := parseRun(c.Ref)
	if err != nil {
		return false, nil
	}
	run, err := api.GetRun(ctx, id)
	if err != nil || run.Result == nil || run.Result.Patch == "" {
		return false, nil
	}
	a.infof("caisson: the run had a copy of the directory; to apply its changes there: caisson diff %s | git apply", id)
	return true, copySafely(a, a.out, strings.NewReader(run.Result.Patch), safetext.Log)
}

// warnTruncated prints a warning to standard error if the list of changes in d is incomplete.
func warnTruncated(a *app, d *caisson.Diff) {
	if d.Cut {
		fmt.Fprintln(a.err, "caisson: there are more changes than are shown; choose fewer with --only")
	}
}

// printStat prints a line for each change, and the number of changes with each verdict.
func printStat(a *app, d *caisson.Diff) error {
	if err := printList(a, d.Changes, statColumns()); err != nil {
		return err
	}
	_, err := fmt.Fprintln(a.out, changesLine(d.Changes))
	return err
}

// statColumns returns the columns of a list of changes.
func statColumns() []column[caisson.Change] {
	return []column[caisson.Change]{
		{name: "CHANGE", value: func(ch caisson.Change) string { return ch.Kind }},
		{name: "PATH", cut: true, id: func(ch caisson.Change) string { return ch.Path }, value: func(ch caisson.Change) string {
			if ch.OldPath != "" {
				return ch.OldPath + " -> " + ch.Path
			}
			return ch.Path
		}},
		{name: "SIZE", value: changeSize},
		{name: "VERDICT", value: func(ch caisson.Change) string { return verdictText(ch.Verdict) }, color: func(ch caisson.Change) string {
			return verdictColors[ch.Verdict]
		}},
		{name: "WHY", wrap: true, value: func(ch caisson.Change) string { return strings.Join(reasons(&ch), "; ") }},
	}
}

// changeSize returns the number of added and removed lines of a change, or else its old and new size, or "" if neither differs.
func changeSize(ch caisson.Change) string {
	switch {
	case ch.Added > 0 || ch.Removed > 0:
		return fmt.Sprintf("+%d -%d", ch.Added, ch.Removed)
	case ch.Type == "dir" || ch.OldType == "dir" || ch.Size == ch.OldSize && !ch.Binary:
		return ""
	}
	return fmt.Sprintf("%s -> %s", caisson.Size(ch.OldSize), caisson.Size(ch.Size))
}

// verdictText returns the text that is shown for a verdict. A verdict that this program does not know, from a newer daemon, is
// shown as denied.
func verdictText(v string) string {
	switch v {
	case caisson.VerdictPass:
		return "passes"
	case caisson.VerdictAsk:
		return "needs review"
	case caisson.VerdictConflict:
		return "conflict"
	case caisson.VerdictDeny:
		return "denied"
	}
	return "denied (" + v + ")"
}

// verdictColors are the colours of verdicts, as parameters of SGR sequences for the terminal.
var verdictColors = map[string]string{
	caisson.VerdictPass: "32", caisson.VerdictAsk: "33", caisson.VerdictConflict: "35", caisson.VerdictDeny: "31",
}

// reasons returns the reasons for a change's verdict: a line for each finding of the checks, and one if the host's file has
// changed, too.
func reasons(ch *caisson.Change) []string {
	var out []string
	for _, f := range ch.Finding {
		s := f.Check + ": " + f.Message
		if f.Line > 0 {
			s += " (line " + strconv.Itoa(f.Line) + ")"
		}
		out = append(out, s)
	}
	switch {
	case ch.Merge:
		out = append(out, "host: its file has also changed; both changes are merged")
	case ch.HostChanged && len(out) == 0:
		out = append(out, "host: its file has also changed")
	}
	return out
}

// countVerdicts returns the numbers of changes of each verdict.
func countVerdicts(list []caisson.Change) map[string]int {
	n := map[string]int{}
	for _, ch := range list {
		n[ch.Verdict]++
	}
	return n
}

// changesLine returns a line with the numbers of changes of each verdict, and of added and removed lines.
func changesLine(list []caisson.Change) string {
	n, added, removed := countVerdicts(list), 0, 0
	for _, ch := range list {
		added, removed = added+ch.Added, removed+ch.Removed
	}
	parts := []string{plural(len(list), "change")}
	for _, v := range []struct{ verdict, word string }{
		{caisson.VerdictPass, "pass"}, {caisson.VerdictAsk, "to review"}, {caisson.VerdictConflict, "conflict"}, {caisson.VerdictDeny, "denied"},
	} {
		if n[v.verdict] > 0 {
			parts = append(parts, strconv.Itoa(n[v.verdict])+" "+v.word)
		}
	}
	return fmt.Sprintf("%s; +%d -%d", strings.Join(parts, ", "), added, removed)
}

// plural returns n and the noun what, with an s unless n is 1.
func plural[N int | int64](n N, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
