package main

import (
	"context"
	"strconv"

	"github.com/caisson-dev/caisson"
)

// dfCmd shows disk usage.
type dfCmd struct{}

func (c *dfCmd) Help() string { return examples("caisson df", "caisson df -o json") }

func (c *dfCmd) Run(ctx context.Context, a *app) error {
	api, err := a.connect(ctx)
	if err != nil {
		return err
	}
	du, err := api.DiskUsage(ctx)
	if err != nil {
		return err
	}
	if a.globals.Output != "table" {
		return a.encode(du)
	}
	kind := func(u caisson.Usage) string { return u.Kind }
	err = printList(a, du.Usages, kind, []column[caisson.Usage]{
		{name: "KIND", value: kind},
		{name: "COUNT", value: func(u caisson.Usage) string { return strconv.Itoa(u.Count) }},
		{name: "SIZE", value: func(u caisson.Usage) string { return u.Size.String() }},
		{name: "RECLAIMABLE", value: func(u caisson.Usage) string { return u.Reclaimable.String() }},
	})
	if err == nil {
		a.say("%s of %s free", du.Free, du.Total)
	}
	return err
}
