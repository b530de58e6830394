package main

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// anyLogsCmd shows the stored output of a run, or the log of a sandbox.
type anyLogsCmd struct {
	Target string `arg:"" name:"run|sandbox" help:"Id of a run, or id or name of a sandbox." complete:"logged"`
	Follow bool   `help:"Follow the log until the run has ended, or the sandbox has stopped." short:"f"`
	Stream string `help:"Of a run: ${enum}." enum:"stdout,stderr,gateway,egress" default:"stdout" placeholder:"STREAM"`
}

func (c *anyLogsCmd) Help() string {
	return "stdout and stderr are what the agent's program wrote; gateway has its calls of models and egress what its wire decided, " +
		"a line of JSON each.\n\n" +
		examples("caisson logs rn-abcdefghijklmnop", "caisson logs -f --stream stderr rn-abcdefghijklmnop",
			"caisson logs --stream egress rn-abcdefghijklmnop", "caisson logs -f web")
}

// ProvideID returns the id of the run, or "" if the target is a sandbox; any --stream but stdout is then an error.
func (c *anyLogsCmd) ProvideID() (caisson.ID, error) {
	switch {
	case strings.HasPrefix(c.Target, caisson.RunPrefix+"-"):
		return parseRun(c.Target)
	case c.Stream != caisson.LogStdout:
		return "", usagef("logs", "--stream is for runs; a sandbox has one log")
	}
	return "", nil
}

func (c *anyLogsCmd) Run(ctx context.Context, a *app, id caisson.ID, api api) error {
	if id == "" {
		return (&logsCmd{sandboxArg{c.Target}, c.Follow}).Run(ctx, a, api)
	}
	out, end := a.safeWriter(a.out, safetext.Log)
	l := runLog{api: api, id: id, stream: c.Stream, out: out}
	show := l.copyNew
	if c.Follow {
		show = l.follow
	}
	err := show(ctx)
	if endErr := end(); err == nil {
		err = endErr
	}
	if err == nil && l.copied == 0 && !a.globals.Quiet {
		l.printEmpty(ctx, a)
	}
	return err
}

// printEmpty prints that the log l is empty, and which of the other logs of the run are not empty.
func (l *runLog) printEmpty(ctx context.Context, a *app) {
	var have []string
	for _, stream := range []string{caisson.LogStdout, caisson.LogStderr, caisson.LogGateway, caisson.LogEgress} {
		if stream == l.stream {
			continue
		}
		r, err := l.api.RunLog(ctx, l.id, stream)
		if err != nil {
			return // Print nothing, because the list of the other logs would be incomplete.
		}
		if n, _ := r.Read(make([]byte, 1)); n > 0 {
			have = append(have, "--stream "+stream)
		}
		_ = r.Close()
	}
	text := "none of the other streams has anything either"
	if len(have) > 0 {
		text = "there is something with " + strings.Join(have, ", ")
	}
	a.infof("caisson: run %s has nothing on %s; %s", l.id, l.stream, text)
}

// runLog copies one of the logs of a run, such as that of its standard output, to out.
type runLog struct {
	api    caisson.Runs
	id     caisson.ID // id of the run
	stream string     // which log of the run is copied, such as caisson.LogStdout
	out    io.Writer  // where the log is copied to
	copied int64      // bytes of the current attempt's log that were copied already
}

// copyNew copies the data that was added to the log since the last call.
func (l *runLog) copyNew(ctx context.Context) error {
	r, err := l.api.RunLog(ctx, l.id, l.stream)
	if err != nil {
		return err
	}
	defer r.Close()
	if n, err := io.CopyN(io.Discard, r, l.copied); n < l.copied {
		if err == io.EOF { //nolint:errorlint // CopyN returns io.EOF as it is
			return nil // another attempt has begun, whose log is still shorter than what was copied
		}
		return err
	}
	n, err := io.Copy(l.out, r)
	l.copied += n
	return err
}

// logPollInterval is the interval at which a log is polled with --follow.
const logPollInterval = 500 * time.Millisecond

// follow copies a log, as it grows, until its run has ended.
func (l *runLog) follow(ctx context.Context) error {
	run, err := l.api.GetRun(ctx, l.id)
	if err != nil {
		return err
	}
	events, err := l.api.WatchRun(ctx, l.id, 0)
	if err != nil {
		return err
	}
	tick := time.NewTicker(logPollInterval)
	defer tick.Stop()
	attempt := run.Attempt
	for open := true; open; {
		var e caisson.RunEvent
		select {
		case e, open = <-events:
			if e.Attempt > attempt {
				attempt, l.copied = e.Attempt, 0
			}
			if open {
				continue
			}
		case <-tick.C:
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := l.copyNew(ctx); err != nil {
			return err
		}
	}
	return nil
}
