package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// eventsCmd prints stored events, and then new ones as they occur.
type eventsCmd struct {
	Subject string           `arg:"" optional:"" help:"Only of this object, by id or name." complete:"sandbox"`
	After   int64            `help:"Only events after this number; 0 begins with the oldest stored event." default:"0" placeholder:"SEQ"`
	Count   int              `help:"Exit after this number of events." short:"n" placeholder:"N"`
	For     caisson.Duration `help:"Exit after this time." placeholder:"DURATION"`
}

func (c *eventsCmd) Help() string {
	return "With -o json each event is one line.\n\n" +
		examples("caisson events", "caisson events web -o json", "caisson events --for 1s")
}

// ProvideValidFlags returns an error if --count or --after is negative.
func (c *eventsCmd) ProvideValidFlags() (validFlags, error) {
	if c.Count < 0 || c.After < 0 {
		return validFlags{}, usagef("events", "--count and --after must not be negative")
	}
	return validFlags{}, nil
}

func (c *eventsCmd) Run(ctx context.Context, a *app, _ validFlags, api api) error {
	// The subject of an event is the id of a sandbox or volume, or the name of a template or image.
	exists := false
	if c.Subject != "" {
		if sb, err := api.Get(ctx, c.Subject); err == nil {
			c.Subject, exists = string(sb.ID), true
		} else if list, _, err := api.ListVolumes(ctx, caisson.Filter{Name: c.Subject}); err == nil && len(list) == 1 {
			c.Subject, exists = string(list[0].ID), true
		}
	}
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := api.Watch(watch, c.Subject, c.After)
	switch {
	case isNotFound(err) && exists: // the object exists, but its events were removed because of their age
		events, err = api.Watch(watch, "", c.After)
	case isNotFound(err):
		err = caisson.Errorf(caisson.NotFound, "there is no sandbox or volume %.80q, and no event has that subject; see caisson sandbox ls, or caisson events for all events", c.Subject)
	}
	if err != nil {
		return err
	}
	if c.For > 0 { // the time of --for starts now, so that connecting to the daemon does not count
		defer time.AfterFunc(time.Duration(c.For), cancel).Stop()
	}
	n := 0
	for e := range events {
		if c.Subject != "" && e.Subject != c.Subject {
			continue
		}
		if err := a.printEvent(e); err != nil {
			return err
		}
		if n++; n == c.Count {
			return nil
		}
	}
	if watch.Err() == nil {
		return caisson.Errorf(caisson.Unavailable, "the daemon ended the stream of events")
	}
	return ctx.Err()
}

// printEvent prints an event as a line of text or, if -o selects JSON or YAML, as one document of a stream.
func (a *app) printEvent(e caisson.Event) error {
	if a.globals.Output == "table" {
		_, err := fmt.Fprintf(a.out, "%d  %s  %s  %s  %s\n", e.Seq, e.At.Local().Format(time.DateTime),
			safetext.Escape(e.Type), safetext.Escape(e.Subject), safetext.Escape(formatPairs(e.Data)))
		return err
	}
	return a.encodeLine(e)
}

// encodeLine prints v as one document of a stream: a line of JSON, or YAML after a separator.
func (a *app) encodeLine(v any) error {
	if a.globals.Output == "yaml" {
		if _, err := fmt.Fprintln(a.out, "---"); err != nil {
			return err
		}
		return a.encode(v)
	}
	text, err := jsonText(v)
	if err != nil {
		return err
	}
	_, err = io.WriteString(a.out, text)
	return err
}
