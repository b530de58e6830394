package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// follow shows a run from the beginning of its present attempt to its end, and returns its error if it has failed. asked is when the
// command that began the run was given; zero for a run that was there before.
func (a conductor) follow(ctx context.Context, run *caisson.Run, asked time.Time) error {
	err := a.watch(ctx, run)
	if ctx.Err() != nil {
		a.say("caisson: the run %s goes on; caisson attach %s shows it again", run.ID, run.ID)
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	if run, err = a.runs.GetRun(ctx, run.ID); err != nil {
		return err
	}
	if !run.State.Ended() || run.Result == nil {
		return caisson.Errorf(caisson.Unavailable, "the daemon ended the stream of events; caisson attach %s takes it up again", run.ID)
	}
	if formOf(a.globals.Output) == formRecord {
		if err := a.encode(run); err != nil {
			return err
		}
	}
	newRunView(a.app).summary(run, took(run, asked, time.Now()))
	if run.Result.Error != nil {
		return run.Result.Error
	}
	return nil
}

// watch shows the events of a run.
func (a conductor) watch(ctx context.Context, run *caisson.Run) error {
	events, err := a.runs.WatchRun(ctx, run.ID, 0)
	if err != nil {
		return err
	}
	v := newRunView(a.app)
	err = v.follow(events, run.Attempt)
	if endErr := v.end(); err == nil {
		err = endErr
	}
	return err
}

// The forms of a run's output.
const (
	formAnswer = iota // the answer, as it comes
	formEvents        // each event, as it comes
	formRecord        // the run, when it has ended
)

// spin is how often the line that says what goes on is drawn anew.
const spin = 120 * time.Millisecond

// runView shows what happens in a run. It is used by one goroutine.
type runView struct {
	a       *app
	form    int
	quiet   bool
	live    bool // standard error is a terminal: what goes on is one line, drawn again and again
	shared  bool // so is standard output, and the same
	out     io.Writer
	close   func() error
	midLine bool // the answer has not ended its line
	drawn   bool // the line of what goes on is there
	frame   int
	now     string            // what goes on
	since   time.Time         // when that began
	tools   map[string]string // names of calls without a result
}

func formOf(output string) int {
	switch output {
	case "table":
		return formAnswer
	case "jsonl":
		return formEvents
	default:
		return formRecord
	}
}

func newRunView(a *app) *runView {
	v := &runView{a: a, quiet: a.globals.Quiet, tools: map[string]string{}, since: time.Now(), now: "queued"}
	v.form = formOf(a.globals.Output)
	v.quiet = v.quiet || v.form == formEvents // which are the progress
	v.live = isTerminal(a.err) && !v.quiet
	v.shared = v.live && isTerminal(a.out)
	v.out, v.close = a.safeWriter(a.out, safetext.Log)
	return v
}

// follow shows events until there are no more; those of attempts before this one are passed over.
func (v *runView) follow(events <-chan caisson.RunEvent, attempt int) error {
	var tick <-chan time.Time
	if v.live {
		t := time.NewTicker(spin)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return nil
			}
			if e.Attempt < attempt && e.Attempt != 0 {
				continue
			}
			if err := v.show(e); err != nil {
				return err
			}
		case <-tick:
			v.draw()
		}
	}
}

// show shows one event.
func (v *runView) show(e caisson.RunEvent) error {
	if v.form == formEvents {
		return v.a.encodeLine(e)
	}
	switch e.Type {
	case caisson.EventTextDelta:
		return v.text(e.Delta)
	case caisson.EventStatus:
		v.status(e)
	case caisson.EventToolStart:
		v.tools[e.CallID] = e.Tool
		v.line("tool %s %s", e.Tool, brief(string(e.Args)))
		v.goesOn("tool " + e.Tool)
	case caisson.EventToolResult:
		if e.IsError {
			v.line("tool %s failed: %s", v.tools[e.CallID], brief(e.Result))
		}
		delete(v.tools, e.CallID)
		v.goesOn("thinking")
	}
	return nil
}

// status shows what the agent is about.
func (v *runView) status(e caisson.RunEvent) {
	switch {
	case e.Child != "":
		v.line("run %s %s", e.Child, e.Label)
	case e.Phase == "warning":
		v.line("warning: %s", e.Label)
	default:
		now := strings.TrimSpace(e.Phase + " " + e.Label)
		if !v.live && now != v.now {
			v.line("%s", now)
		}
		v.goesOn(now)
	}
}

// text writes a part of the answer.
func (v *runView) text(s string) error {
	if v.form != formAnswer || s == "" {
		return nil
	}
	v.erase()
	v.midLine = !strings.HasSuffix(s, "\n")
	_, err := io.WriteString(v.out, s)
	return err
}

// end ends the answer's last line, and takes away what is not to stay.
func (v *runView) end() error {
	v.erase()
	var err error
	if v.midLine {
		v.midLine = false
		_, err = io.WriteString(v.out, "\n")
	}
	if closeErr := v.close(); err == nil {
		err = closeErr
	}
	return err
}

// line writes a line that stays. All of it but the format may be an agent's words.
func (v *runView) line(format string, args ...any) {
	if v.quiet {
		return
	}
	v.erase()
	if v.shared && v.midLine {
		fmt.Fprintln(v.a.err)
		v.midLine = false
	}
	fmt.Fprintf(v.a.err, "%s\n", strings.TrimRight(safetext.Escape(fmt.Sprintf(format, args...)), " "))
}

// goesOn says what goes on from now.
func (v *runView) goesOn(what string) {
	if what != v.now {
		v.now, v.since = what, time.Now()
	}
	v.draw()
}

// took is how long a run took for who waited for it: from the command that asked for it, if that is known, until now. Of another one
// it is the time from its record: in the queue, for its sandbox, and under way. When a later attempt was asked for is not in the
// record, so that of one it is the time under way.
func took(r *caisson.Run, asked, now time.Time) time.Duration {
	began, ended := r.CreatedAt, r.EndedAt
	switch {
	case !asked.IsZero():
		began, ended = asked, now
	case r.Attempt > 1 && !r.StartedAt.IsZero():
		began = r.StartedAt
	}
	return ended.Sub(began).Round(100 * time.Millisecond)
}

// frames are what a line that goes on begins with, in turn.
var frames = []string{"|", "/", "-", `\`}

// draw shows what goes on, unless the answer is in the middle of a line of the same terminal.
func (v *runView) draw() {
	if !v.live || v.shared && v.midLine {
		return
	}
	v.frame++
	text := fmt.Sprintf("%s %s (%s)", frames[v.frame%len(frames)], safetext.Escape(brief(v.now)), short(time.Since(v.since)))
	if _, cols := terminalSize(v.a.err); cols > 1 && len([]rune(text)) >= int(cols) {
		text = string([]rune(text)[:cols-1])
	}
	fmt.Fprintf(v.a.err, "\r%s\x1b[K", text)
	v.drawn = true
}

func (v *runView) erase() {
	if v.drawn {
		fmt.Fprint(v.a.err, "\r\x1b[K")
		v.drawn = false
	}
}

// maxBrief is how much of what an agent says about itself is in one line, in characters.
const maxBrief = 160

// brief returns the beginning of s as one line.
func brief(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > maxBrief {
		s = string(r[:maxBrief]) + "…"
	}
	return s
}

// usageOf is what all attempts of a run took. What an older daemon has stored has that of the last one only.
func usageOf(run *caisson.Run) caisson.RunUsage {
	if run.Usage == (caisson.RunUsage{}) && run.Result != nil {
		return run.Result.Usage
	}
	return run.Usage
}

// costText says what was used costs, and how sure that is.
func costText(u caisson.RunUsage) string {
	switch {
	case u.Most > 0:
		return "at most $" + u.Most.String()
	case u.Estimated:
		return "about $" + u.Cost.String()
	}
	return "$" + u.Cost.String()
}

// summary says what a run took and left.
func (v *runView) summary(run *caisson.Run, took time.Duration) {
	r := run.Result
	u := usageOf(run)
	parts := []string{fmt.Sprintf("%d calls", u.Calls), fmt.Sprintf("%d tokens", u.Tokens.Total()), costText(u)}
	if run.Attempt > 1 {
		parts[2] += fmt.Sprintf(" in %d attempts", run.Attempt)
	}
	if n := len(r.Changes); n > 0 {
		var names []string
		for _, c := range r.Changes[:min(n, 5)] {
			names = append(names, c.Path)
		}
		if n > 5 {
			names = append(names, "…")
		}
		parts = append(parts, fmt.Sprintf("%d changed: %s", n, strings.Join(names, ", ")))
	}
	if run.Children > 0 {
		parts = append(parts, fmt.Sprintf("%d runs within", run.Children))
	}
	v.line("run %s %s in %s: %s", run.ID, run.State, took, strings.Join(parts, ", "))
	if run.Workspace != "" && len(r.Changes) > 0 && run.Request.Sync == caisson.SyncSecure {
		v.line("look at the changes with: caisson diff %s; apply them with: caisson sync %s", run.ID, run.ID)
	}
	v.delivered(r.Delivery)
	if run.Request.Keep && run.Sandbox != "" {
		v.line("sandbox %s is kept", run.Sandbox)
	}
}
