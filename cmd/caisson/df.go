package main

import (
	"context"
	"strconv"

	"github.com/caisson-dev/caisson"
)

// dfCmd shows disk usage.
type dfCmd struct{}

func (c *dfCmd) Help() string {
	return "Programs and tools are what Caisson itself has unpacked; runs has uploads and output, ledger the calls that are not in the store yet.\n\n" +
		examples("caisson df", "caisson df -o json")
}

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
		var used caisson.Size
		for _, u := range du.Usages {
			used += u.Size
		}
		a.infof("%s in all, without workspaces and repositories; %s of %s are free on the file system", used, du.Free, du.Total)
	}
	return err
}
