package main

import (
	"context"
	"strconv"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// relayCmd contains the commands that manage deliveries.
type relayCmd struct {
	Ls    relayLsCmd    `cmd:"" help:"List deliveries, newest first."`
	Show  relayShowCmd  `cmd:"" help:"Show everything about a delivery."`
	Retry relayRetryCmd `cmd:"" help:"Send deliveries now that are held, have failed, or wait."`
	Drop  relayDropCmd  `cmd:"" help:"Drop deliveries; their commits are lost."`
}

// deliveryStates are the states of deliveries, in the order in which they occur.
var deliveryStates = []caisson.DeliveryState{
	caisson.DeliveryHeld, caisson.DeliveryWaiting, caisson.DeliverySending, caisson.DeliveryDelivered, caisson.DeliveryFailed, caisson.DeliveryDropped,
}

func deliveryID(d *caisson.Delivery) string { return string(d.ID) }

// relayLsCmd lists deliveries.
type relayLsCmd struct {
	State []string `help:"Only in this state: held, waiting, sending, delivered, failed, dropped; may be repeated." placeholder:"STATE" complete:"deliverystate"`
	Repo  string   `help:"Only of this repository." placeholder:"NAME" complete:"repo"`
	OfRun string   `name:"run" help:"Only of this run." placeholder:"RUN" complete:"run"`
	Count int      `help:"How many." short:"n" default:"20" placeholder:"N"`
}

func (c *relayLsCmd) Help() string {
	return examples("caisson relay ls", "caisson relay ls --state held --state failed", "caisson relay ls --repo web -o json")
}

// ProvideFilter returns the filter for deliveries that the flags specify.
func (c *relayLsCmd) ProvideFilter() (f caisson.DeliveryFilter, err error) {
	f.Repo = c.Repo
	if c.Count < 1 {
		return f, usagef("relay ls", "--count must be at least 1")
	}
	if f.States, err = parseStates(c.State, deliveryStates, "deliveries"); err != nil {
		return f, err
	}
	f.Run, err = parseOptional(parseRun, c.OfRun)
	return f, err
}

func (c *relayLsCmd) Run(ctx context.Context, a *app, f caisson.DeliveryFilter, api api) error {
	return asList(a, []column[*caisson.Delivery]{
		{name: "ID", value: deliveryID},
		{name: "STATE", value: func(d *caisson.Delivery) string { return string(d.State) }, color: func(d *caisson.Delivery) string {
			switch d.State {
			case caisson.DeliveryDelivered:
				return "32"
			case caisson.DeliveryFailed:
				return "31"
			case caisson.DeliveryDropped:
				return plainColor
			}
			return "33"
		}},
		{name: "REPO", value: func(d *caisson.Delivery) string { return d.Repo }},
		{name: "BRANCH", value: func(d *caisson.Delivery) string { return d.Branch }},
		{name: "COMMITS", value: func(d *caisson.Delivery) string { return strconv.Itoa(d.Commits) }},
		{name: "AGE", value: func(d *caisson.Delivery) string { return age(d.CreatedAt) }},
		{name: "RUN", value: func(d *caisson.Delivery) string { return string(d.Run) }},
		{name: "URL", value: func(d *caisson.Delivery) string { return d.URL }},
	})(collectPages(c.Count, deliveryID, func(before string, limit int) ([]*caisson.Delivery, bool, error) {
		f.Before, f.Limit = caisson.ID(before), limit
		return api.ListDeliveries(ctx, f)
	}))
}

// relayShowCmd shows one delivery.
type relayShowCmd struct {
	Ref string `arg:"" name:"delivery|run" help:"Id of the delivery, or of the run whose newest it is." complete:"delivery"`
}

func (c *relayShowCmd) Help() string {
	return examples("caisson relay show dl-abcdefghijklmnop", "caisson relay show rn-abcdefghijklmnop -o json")
}

func (c *relayShowCmd) Run(ctx context.Context, a *app, api api) error {
	return asOne(a, deliveryID, deliveryRows)(api.GetDelivery(ctx, c.Ref))
}

// deliveryRows returns the properties of a delivery, as pairs of a name and a value.
func deliveryRows(d *caisson.Delivery) [][2]string {
	pull := ""
	switch {
	case d.Number > 0:
		pull = strconv.FormatInt(d.Number, 10)
	case d.Pull && d.Ready:
		pull = "will be opened"
	case d.Pull:
		pull = "will be opened as a draft"
	}
	rows := [][2]string{
		{"ID", string(d.ID)}, {"State", string(d.State)}, {"Repository", d.Repo}, {"Base", d.Base}, {"Branch", d.Branch},
		{"Commits", strconv.Itoa(d.Commits)}, {"Run", string(d.Run)}, {"Session", string(d.Session)}, {"Sandbox", string(d.Sandbox)},
		{"From", d.From}, {"Pushed", d.Pushed}, {"Commit", d.Commit}, {"Sent", d.Sent}, {"Pull request", pull}, {"Title", d.Title},
		{"URL", d.URL}, {"Attempts", strconv.Itoa(d.Attempts)}, {"Error", d.Error}, {"Next try", formatTime(d.NextAt)}, {"Created", formatTime(d.CreatedAt)},
		{"Ended", formatTime(d.EndedAt)},
	}
	for _, f := range d.Findings {
		rows = append(rows, [2]string{"Finding", f.Check + ": " + f.Message})
	}
	return rows
}

// relayRetryCmd sends deliveries again.
type relayRetryCmd struct {
	Deliveries []string `arg:"" name:"delivery" help:"Ids of deliveries." complete:"delivery"`
}

func (c *relayRetryCmd) Help() string {
	return "Look first at what is held, and why: with relay show. It does not wait for the end.\n\n" + examples("caisson relay retry dl-abcdefghijklmnop")
}

func (c *relayRetryCmd) Run(ctx context.Context, a *app, api api) error {
	return forEachRef(ctx, a, c.Deliveries, deliveryID, byID(parseDelivery, api.RetryDelivery))
}

// relayDropCmd drops deliveries.
type relayDropCmd struct {
	Deliveries []string `arg:"" name:"delivery" help:"Ids of deliveries." complete:"delivery"`
}

func (c *relayDropCmd) Help() string {
	return examples("caisson relay drop dl-abcdefghijklmnop", "caisson relay drop $(caisson relay ls -q --state held)")
}

func (c *relayDropCmd) Run(ctx context.Context, a *app, api api) error {
	drop := func(ctx context.Context, id caisson.ID) (*caisson.Delivery, error) {
		d, err := api.DropDelivery(ctx, id)
		if err == nil && d.Error != "" {
			a.infof("caisson: %s: %s", id, safetext.Escape(d.Error))
		}
		return d, err
	}
	return forEachRef(ctx, a, c.Deliveries, deliveryID, byID(parseDelivery, drop))
}
