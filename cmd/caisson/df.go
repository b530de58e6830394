package main

import (
	"context"
	"strconv"

	"github.com/caisson-dev/caisson"
)

// dfCmd shows disk usage.
type dfCmd struct{}

func (c *dfCmd) Help() string { return examples("caisson df", "caisson df -o json") }

func (c *dfCmd) Run(ctx context.Context, a *app, api api) error {
	du, err := api.DiskUsage(ctx)
	if err != nil {
		return err
	}
	if a.globals.Output != "table" {
		return a.encode(du)
	}
	err = printList(a, du.Usages, []column[caisson.Usage]{
		{name: "KIND", value: func(u caisson.Usage) string { return u.Kind }},
		{name: "COUNT", value: func(u caisson.Usage) string { return strconv.Itoa(u.Count) }},
		{name: "SIZE", value: func(u caisson.Usage) string { return u.Size.String() }},
		{name: "RECLAIMABLE", value: func(u caisson.Usage) string { return u.Reclaimable.String() }},
	})
	if err == nil {
		a.infof("%s of %s are free", du.Free, du.Total)
	}
	return err
}
