package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson"
)

// topCmd shows the running and suspended sandboxes with their resource usage, once or, on a terminal, repeatedly.
type topCmd struct {
	Every caisson.Duration `help:"Time between two measurements." default:"2s" placeholder:"DURATION"`
	Once  bool             `help:"Show them once; so it is where the output is no terminal."`
}

func (c *topCmd) Help() string {
	return "Ctrl-C ends it. CPU is the share of one processor since the last measurement.\n\n" +
		examples("caisson top", "caisson top --every 5s", "caisson top --once -o json")
}

// topRow is one line of the output of top: a sandbox and its resource usage. Stats is nil if the sandbox was not measured.
type topRow struct {
	ID       caisson.ID    `json:"id"`
	Name     string        `json:"name,omitempty"`
	Pooled   bool          `json:"pooled,omitempty"` // the sandbox is in a warm pool and was not claimed yet
	Template string        `json:"template,omitempty"`
	State    caisson.State `json:"state"`
	CPU      float64       `json:"cpu" doc:"Processors in use"`
	*caisson.Stats
}

// firstInterval is the time between the first two measurements of top, from which the first value of processor usage is computed.
const firstInterval = 500 * time.Millisecond

func (c *topCmd) Run(ctx context.Context, a *app, api api) error {
	if c.Every <= 0 {
		return caisson.Invalidf("every", "must be greater than 0")
	}
	once := c.Once || !isTerminal(a.out) || a.globals.Output != "table"
	last, err := measureAll(ctx, api, nil)
	for wait := firstInterval; err == nil; wait = time.Duration(c.Every) {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
		if last, err = measureAll(ctx, api, last); err != nil {
			break
		}
		if once {
			return printList(a, last, topColumns())
		}
		err = c.paint(a, last)
	}
	return err
}

// paint clears the terminal and prints the sums and the rows.
func (c *topCmd) paint(a *app, rows []topRow) error {
	var text bytes.Buffer
	to := *a
	to.out = &text
	var cpu float64
	var memory caisson.Size
	for _, r := range rows {
		if cpu += r.CPU; r.Stats != nil {
			memory += r.Memory
		}
	}
	err := printList(&to, rows, topColumns())
	if err == nil {
		const clear = "\x1b[H\x1b[2J"
		_, err = fmt.Fprintf(a.out, "%s%d sandboxes, %.0f%% of a processor, %s of memory\n\n%s", clear, len(rows), 100*cpu, memory, &text)
	}
	return err
}

// measureAll measures the running sandboxes and returns their rows and those of suspended ones, the busiest first. last are the
// rows of the previous measurement. Sandboxes that end during the measurement are left out.
func measureAll(ctx context.Context, api api, last []topRow) ([]topRow, error) {
	list, err := allPages(ctx, caisson.Filter{States: []caisson.State{caisson.Running, caisson.Suspended}}, sandboxID, api.List)
	if err != nil {
		return nil, err
	}
	rows := make([]topRow, len(list))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, sb := range list {
		g.Go(func() error {
			rows[i] = topRow{ID: sb.ID, Name: sb.Name, Pooled: sb.Pooled, Template: sb.Template, State: sb.State}
			if sb.State != caisson.Running {
				return nil
			}
			s, err := api.Stats(ctx, string(sb.ID))
			switch caisson.KindOf(err) {
			case caisson.NotFound, caisson.Conflict:
				rows[i].ID = ""
				return nil
			}
			if err != nil {
				return err
			}
			rows[i].Stats = s
			j := slices.IndexFunc(last, func(r topRow) bool { return r.ID == sb.ID && r.Stats != nil })
			if j >= 0 && s.At.After(last[j].At) {
				rows[i].CPU = float64(s.CPUNanos-last[j].CPUNanos) / float64(s.At.Sub(last[j].At))
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	rows = slices.DeleteFunc(rows, func(r topRow) bool { return r.ID == "" })
	slices.SortStableFunc(rows, func(x, y topRow) int { return cmp.Compare(y.CPU, x.CPU) })
	return rows, nil
}

// topColumns returns the columns of the output of top.
func topColumns() []column[topRow] {
	measured := func(value func(topRow) string) func(topRow) string {
		return func(r topRow) string {
			if r.Stats == nil {
				return ""
			}
			return value(r)
		}
	}
	return []column[topRow]{
		{name: "ID", value: func(r topRow) string { return string(r.ID) }},
		{name: "NAME", value: func(r topRow) string { return nameInList(r.Name, r.Pooled) }},
		{name: "TEMPLATE", value: func(r topRow) string { return r.Template }},
		{name: "STATE", value: func(r topRow) string { return string(r.State) }},
		{name: "CPU", value: measured(func(r topRow) string { return fmt.Sprintf("%.0f%%", 100*r.CPU) })},
		{name: "MEMORY", value: measured(func(r topRow) string { return r.Memory.String() })},
		{name: "LIMIT", value: measured(func(r topRow) string { return r.MemoryMax.String() })},
		{name: "PIDS", value: measured(func(r topRow) string { return strconv.Itoa(r.PIDs) })},
		{name: "NET OUT", value: measured(func(r topRow) string { return networkValue(bytesOut)(statsRow{Stats: r.Stats}) })},
		{name: "NET IN", value: measured(func(r topRow) string { return networkValue(bytesIn)(statsRow{Stats: r.Stats}) })},
	}
}

// bytesOut returns the number of bytes that a sandbox has sent, as text.
func bytesOut(n *caisson.NetworkStats) string { return caisson.Size(n.BytesOut).String() }

// bytesIn returns the number of bytes that a sandbox has received, as text.
func bytesIn(n *caisson.NetworkStats) string { return caisson.Size(n.BytesIn).String() }
