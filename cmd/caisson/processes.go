package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// psCmd lists the processes of a sandbox, or the running sandboxes.
type psCmd struct {
	Sandbox string `arg:"" optional:"" help:"Id or name; without it the running sandboxes are listed." complete:"sandbox"`
}

func (c *psCmd) Help() string { return examples("caisson ps", "caisson ps web") }

func (c *psCmd) Run(ctx context.Context, a *app, api api) error {
	if c.Sandbox == "" {
		running := caisson.Filter{States: []caisson.State{caisson.Running}}
		return asList(a, sandboxColumns())(allPages(ctx, running, sandboxID, api.List))
	}
	return asList(a, []column[caisson.ProcessInfo]{
		{name: "PID", value: func(p caisson.ProcessInfo) string { return strconv.Itoa(p.PID) }},
		{name: "PPID", value: func(p caisson.ProcessInfo) string { return strconv.Itoa(p.PPID) }},
		{name: "UID", value: func(p caisson.ProcessInfo) string { return strconv.Itoa(p.UID) }},
		{name: "THREADS", value: func(p caisson.ProcessInfo) string { return strconv.Itoa(p.Threads) }},
		{name: "TIME", value: func(p caisson.ProcessInfo) string { return p.CPUTime }},
		{name: "COMMAND", value: func(p caisson.ProcessInfo) string { return p.Command }},
	})(api.ListProcesses(ctx, c.Sandbox))
}

// logsCmd shows the log of a sandbox.
type logsCmd struct {
	sandboxArg
	Follow bool `help:"Follow the log until the sandbox stops." short:"f"`
}

func (c *logsCmd) Help() string {
	return examples("caisson sandbox logs web", "caisson sandbox logs -f web")
}

func (c *logsCmd) Run(ctx context.Context, a *app, api api) error {
	return asLog(a)(api.Logs(ctx, c.Sandbox, c.Follow))
}

// statsCmd prints the resource usage of running sandboxes.
type statsCmd struct {
	sandboxesArg
	Every caisson.Duration `help:"Measure again and again, this far apart." placeholder:"DURATION"`
}

func (c *statsCmd) Help() string {
	return examples("caisson sandbox stats web", "caisson sandbox stats --every 2s web")
}

// statsRow is one line of the output of stats.
type statsRow struct {
	Sandbox string `json:"sandbox"` // id or name of the sandbox, as the user has given it
	*caisson.Stats
}

func (c *statsCmd) Run(ctx context.Context, a *app, api api) error {
	for {
		var rows []statsRow
		for _, ref := range c.Sandbox {
			s, err := api.Stats(ctx, ref)
			if err != nil {
				return err
			}
			rows = append(rows, statsRow{ref, s})
		}
		if err := printList(a, rows, statsColumns()); err != nil {
			return err
		}
		if c.Every <= 0 {
			return nil
		}
		select {
		case <-time.After(time.Duration(c.Every)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// statsColumns returns the columns of the output of stats.
func statsColumns() []column[statsRow] {
	return []column[statsRow]{
		{name: "SANDBOX", value: func(m statsRow) string { return m.Sandbox }},
		{name: "CPU TIME", value: func(m statsRow) string {
			return time.Duration(m.CPUNanos).Round(time.Millisecond).String()
		}},
		{name: "MEMORY", value: func(m statsRow) string { return m.Memory.String() }},
		{name: "LIMIT", value: func(m statsRow) string { return m.MemoryMax.String() }},
		{name: "USED", value: func(m statsRow) string {
			if m.MemoryMax == 0 {
				return ""
			}
			return fmt.Sprintf("%.0f%%", 100*float64(m.Memory)/float64(m.MemoryMax))
		}},
		{name: "PIDS", value: func(m statsRow) string { return strconv.Itoa(m.PIDs) }},
		{name: "NET OUT", value: networkValue(bytesOut)},
		{name: "NET IN", value: networkValue(bytesIn)},
		{name: "OPEN", value: networkValue(func(n *caisson.NetworkStats) string { return strconv.Itoa(n.Open) })},
		{name: "DENIED", value: networkValue(func(n *caisson.NetworkStats) string { return strconv.FormatInt(n.Denied, 10) })},
	}
}

// networkValue returns a function that applies value to the network statistics of a row, or returns "" if the row has none.
func networkValue(value func(*caisson.NetworkStats) string) func(statsRow) string {
	return func(m statsRow) string {
		if m.Network == nil {
			return ""
		}
		return value(m.Network)
	}
}

// killCmd sends a signal to a process.
type killCmd struct {
	sandboxArg
	PID    int    `arg:"" name:"pid" help:"Process id in the sandbox; -1 after -- means every process."`
	Signal string `help:"Name or number of the signal." short:"s" default:"TERM"`
}

func (c *killCmd) Help() string {
	return examples("caisson sandbox kill web 12", "caisson sandbox kill -s KILL web -- -1")
}

// ProvideSignal parses the flag --signal.
func (c *killCmd) ProvideSignal() (int, error) { return parseSignal(c.Signal) }

func (c *killCmd) Run(ctx context.Context, signal int, api api) error {
	return api.Kill(ctx, c.Sandbox, c.PID, signal)
}

// parseSignal parses the name or number of a signal: KILL, SIGKILL or 9.
func parseSignal(s string) (int, error) {
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n <= 64 {
		return n, nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if n := unix.SignalNum(name); n != 0 {
		return int(n), nil
	}
	return 0, caisson.Invalidf("signal", "%.40q is not a signal; write for example TERM, SIGKILL or 9", s)
}
