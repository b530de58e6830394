package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// follow shows a run from the beginning of its current attempt to its end, and returns the run's error if it has failed. asked is
// the time at which the user gave the command that started the run; it is zero for a run that existed before.
func (a runConsole) follow(ctx context.Context, run *caisson.Run, asked time.Time) error {
	events, err := a.runs.WatchRun(ctx, run.ID, 0)
	if err == nil {
		err = newRunView(a.app).follow(events, run.Attempt, nil)
	}
	if ctx.Err() != nil {
		a.infof("caisson: the run %s continues; caisson attach %s shows it again", run.ID, run.ID)
		return context.Cause(ctx)
	}
	if err != nil {
		return err
	}
	return a.conclude(ctx, run, asked)
}

// conclude shows the outcome of a run that has ended, and returns the run's error if it has failed.
func (a runConsole) conclude(ctx context.Context, run *caisson.Run, asked time.Time) error {
	run, err := a.runs.GetRun(ctx, run.ID)
	if err != nil {
		return err
	}
	if !run.State.Ended() || run.Result == nil {
		return caisson.Errorf(caisson.Unavailable, "the daemon ended the stream of events; caisson attach %s continues it", run.ID)
	}
	if runFormat(a.globals.Output) == formRecord {
		if err := a.encode(run); err != nil {
			return err
		}
	}
	newRunView(a.app).summary(run, elapsed(run, asked, time.Now()))
	if run.Result.Error != nil {
		return run.Result.Error
	}
	return nil
}

// The output formats of a run.
const (
	formAnswer = iota // the text of the answer, as it arrives
	formEvents        // each event as a line of JSON, as it arrives
	formRecord        // the run as JSON or YAML, when it has ended
)

// redrawInterval is the interval at which the status line is redrawn.
const redrawInterval = 120 * time.Millisecond

// runView shows the events of a run. It must be used by one goroutine at a time.
type runView struct {
	a             *app
	form          int               // formAnswer, formEvents or formRecord
	quiet         bool              // neither progress nor results are printed on standard error
	live          bool              // standard error is a terminal: the activity is shown in one status line, which is redrawn
	shared        bool              // standard output and standard error go to the same place
	out           io.Writer         // standard output; if it is a terminal, behind a filter that makes untrusted text safe
	close         func() error      // must be called after the last write to out; writes what the filter of out holds back
	midLine       bool              // the answer so far does not end with a line break
	statusShown   bool              // the status line is on the screen
	frame         int               // number of times that the status line was drawn
	activity      string            // what the run does now: its phase, or the tool that is called
	activitySince time.Time         // when the current activity began
	tools         map[string]string // names of the tools whose calls have no result yet, by the id of the call
}

// runFormat returns the output format of a run for the value of -o.
func runFormat(output string) int {
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
	v := &runView{a: a, quiet: a.globals.Quiet, tools: map[string]string{}, activitySince: time.Now(), activity: "queued"}
	v.form = runFormat(a.globals.Output)
	v.quiet = v.quiet || v.form == formEvents // in this format, the events show the progress
	v.live = isTerminal(a.err) && !v.quiet
	v.shared = v.live && isTerminal(a.out) || sameFile(a.out, a.err)
	v.out, v.close = a.safeWriter(a.out, safetext.Log)
	return v
}

// sameFile reports whether a and b are the same file or pipe, as with 2>&1.
func sameFile(a, b any) bool {
	var infos [2]os.FileInfo
	for i, f := range []any{a, b} {
		file, ok := f.(*os.File)
		if !ok {
			return false
		}
		var err error
		if infos[i], err = file.Stat(); err != nil {
			return false
		}
	}
	return os.SameFile(infos[0], infos[1])
}

// follow shows events until the channel is closed or until, unless it is nil, returns true for an event, and then completes the
// output. It skips events of attempts before attempt.
func (v *runView) follow(events <-chan caisson.RunEvent, attempt int, until func(caisson.RunEvent) bool) (err error) {
	defer func() {
		if endErr := v.end(); err == nil {
			err = endErr
		}
	}()
	var tick <-chan time.Time
	if v.live {
		t := time.NewTicker(redrawInterval)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case e, ok := <-events:
			if !ok || until != nil && until(e) {
				return nil
			}
			if e.Attempt < attempt && e.Attempt != 0 {
				continue
			}
			if err := v.showEvent(e); err != nil {
				return err
			}
		case <-tick:
			v.drawStatus()
		}
	}
}

// showEvent prints one event.
func (v *runView) showEvent(e caisson.RunEvent) error {
	if v.form == formEvents {
		return v.a.encodeLine(e)
	}
	switch e.Type {
	case caisson.EventTextDelta:
		return v.writeText(e.Delta)
	case caisson.EventStatus:
		v.showStatus(e)
	case caisson.EventToolStart:
		v.tools[e.CallID] = e.Tool
		v.writeLine("tool %s %s", e.Tool, oneLine(string(e.Args)))
		v.setActivity("tool " + e.Tool)
	case caisson.EventToolResult:
		if e.IsError {
			v.writeLine("tool %s failed: %s", v.tools[e.CallID], oneLine(e.Result))
		}
		delete(v.tools, e.CallID)
		v.setActivity("thinking")
	}
	return nil
}

// showStatus prints a change of the run's phase.
func (v *runView) showStatus(e caisson.RunEvent) {
	switch {
	case e.Child != "":
		v.writeLine("run %s %s", e.Child, e.Label)
	case e.Phase == "warning":
		v.writeLine("warning: %s", e.Label)
	default:
		now := strings.TrimSpace(e.Phase + " " + e.Label)
		if !v.live && now != v.activity {
			v.writeLine("%s", now)
		}
		v.setActivity(now)
	}
}

// writeText writes a part of the answer.
func (v *runView) writeText(s string) error {
	if v.form != formAnswer || s == "" {
		return nil
	}
	v.eraseStatus()
	v.midLine = !strings.HasSuffix(s, "\n")
	_, err := io.WriteString(v.out, s)
	return err
}

// end completes the answer's last line, removes the status line, and ends the filter that makes the answer safe for a terminal.
func (v *runView) end() error {
	v.eraseStatus()
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

// writeLine writes a line that remains on the screen. The arguments may contain untrusted text of an agent.
func (v *runView) writeLine(format string, args ...any) {
	if v.quiet {
		return
	}
	v.eraseStatus()
	if v.shared && v.midLine {
		fmt.Fprintln(v.a.err)
		v.midLine = false
	}
	fmt.Fprintf(v.a.err, "%s\n", strings.TrimRight(safetext.Escape(fmt.Sprintf(format, args...)), " "))
}

// setActivity sets what the status line shows, and redraws it.
func (v *runView) setActivity(what string) {
	if what != v.activity {
		v.activity, v.activitySince = what, time.Now()
	}
	v.drawStatus()
}

// elapsed returns how long a run took for a person who waited for it: from asked, the time of the command that started it, until
// now. If asked is zero, it is the time in the run's record: queued, provisioning its sandbox, and running. For an attempt after
// the first, it is only the time of running, because the record does not contain when such an attempt was requested.
func elapsed(r *caisson.Run, asked, now time.Time) time.Duration {
	began, ended := r.CreatedAt, r.EndedAt
	switch {
	case !asked.IsZero():
		began, ended = asked, now
	case r.Attempt > 1 && !r.StartedAt.IsZero():
		began = r.StartedAt
	}
	return ended.Sub(began).Round(100 * time.Millisecond)
}

// spinnerFrames are the characters with which the status line begins, one after the other each time that the line is drawn.
var spinnerFrames = []string{"|", "/", "-", `\`}

// drawStatus redraws the status line, unless the answer has an incomplete line on the same terminal.
func (v *runView) drawStatus() {
	if !v.live || v.shared && v.midLine {
		return
	}
	v.frame++
	text := fmt.Sprintf("%s %s (%s)", spinnerFrames[v.frame%len(spinnerFrames)], safetext.Escape(oneLine(v.activity)), shortDuration(time.Since(v.activitySince)))
	if _, cols := terminalSize(v.a.err); cols > 1 && len([]rune(text)) >= int(cols) {
		text = string([]rune(text)[:cols-1])
	}
	fmt.Fprintf(v.a.err, "\r%s\x1b[K", text)
	v.statusShown = true
}

// eraseStatus removes the status line from the screen, if it is shown.
func (v *runView) eraseStatus() {
	if v.statusShown {
		fmt.Fprint(v.a.err, "\r\x1b[K")
		v.statusShown = false
	}
}

// maxOneLine is the maximum number of characters of an agent's text that are shown in one line.
const maxOneLine = 160

// oneLine returns the beginning of s as one line of at most maxOneLine characters.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > maxOneLine {
		s = string(r[:maxOneLine]) + "…"
	}
	return s
}

// totalUsage returns the usage of all attempts of a run. For a run that an older daemon has stored, it is the usage of the last
// attempt only.
func totalUsage(run *caisson.Run) caisson.RunUsage {
	if run.Usage == (caisson.RunUsage{}) && run.Result != nil {
		return run.Result.Usage
	}
	return run.Usage
}

// costText returns the cost in u as text that says whether it is an upper bound or an estimate.
func costText(u caisson.RunUsage) string {
	switch {
	case u.MaxCost > 0:
		return "at most $" + u.MaxCost.String()
	case u.Estimated:
		return "about $" + u.Cost.String()
	}
	return "$" + u.Cost.String()
}

// summary prints the usage and the results of a run. took is how long the run took, as elapsed returns it.
func (v *runView) summary(run *caisson.Run, took time.Duration) {
	r := run.Result
	u := totalUsage(run)
	parts := []string{plural(u.Calls, "call"), plural(u.Tokens.Total(), "token"), costText(u)}
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
		parts = append(parts, plural(run.Children, "sub-run"))
	}
	with := ""
	if run.Model != "" && u.Calls > 0 {
		with = " with " + run.Model
	}
	v.writeLine("run %s %s in %s%s: %s", run.ID, run.State, took, with, strings.Join(parts, ", "))
	if run.Workspace != "" && len(r.Changes) > 0 && run.Request.Sync == caisson.SyncSecure {
		v.writeLine("look at the changes with: caisson diff %s; apply them with: caisson sync %s", run.ID, run.ID)
	}
	if run.Workspace == "" && r.Patch != "" && run.HasWorkspace {
		v.writeLine("look at the changes with: caisson diff %s; they are in a copy, and nothing is applied", run.ID)
	}
	v.printDelivery(r.Delivery)
	if run.Request.Keep && run.Sandbox != "" {
		v.writeLine("sandbox %s is kept", run.Sandbox)
	}
}
