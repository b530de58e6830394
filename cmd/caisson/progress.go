package main

import (
	"fmt"

	"github.com/schollz/progressbar/v3"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// progress shows the progress of a long operation on standard error: as a bar on a terminal, else as a line for each stage.
//
// It must be used by one goroutine at a time.
type progress struct {
	a     *app
	quiet bool                     // show nothing
	tty   bool                     // show a bar, because standard error is a terminal
	stage string                   // the stage and detail that were shown last
	bar   *progressbar.ProgressBar // nil if none is on the screen
}

func newProgress(a *app) *progress {
	return &progress{a: a, quiet: a.globals.Quiet, tty: isTerminal(a.err) && !a.globals.Quiet}
}

// update shows the progress u. If u belongs to another stage than the progress before it, a new line or bar begins.
func (p *progress) update(u caisson.Progress) {
	if p.quiet {
		return
	}
	stage := safetext.Escape(u.Stage)
	if u.Detail != "" {
		stage += " " + safetext.Escape(u.Detail)
	}
	if stage != p.stage {
		p.end()
		p.stage = stage
		if !p.tty {
			fmt.Fprintln(p.a.err, stage)
		}
	}
	if u.Message != "" {
		p.end()
		fmt.Fprintf(p.a.err, "  %s\n", safetext.Escape(u.Message))
	}
	if p.tty {
		p.show(u)
	}
}

// show updates the bar. For each stage, it creates a new one.
func (p *progress) show(u caisson.Progress) {
	total := u.Total
	if total <= 0 {
		total = -1 // the total is unknown, and the bar becomes a spinner
	}
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(p.a.err), progressbar.OptionSetDescription(p.stage),
			progressbar.OptionShowBytes(true), progressbar.OptionClearOnFinish(), progressbar.OptionFullWidth(),
			progressbar.OptionSetRenderBlankState(true))
	}
	if total > 0 && p.bar.GetMax64() != total {
		p.bar.ChangeMax64(total)
	}
	_ = p.bar.Set64(min(u.Done, max(total, u.Done))) // errors in drawing the bar do not concern the operation
}

// end removes the bar from the screen. The next update creates another one.
func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
}
