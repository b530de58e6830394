package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// printSynced prints the result of a sync: a summary on standard error, and the receipt. dropped is the number of changes that
// the request has dropped. The receipt r has no id if it was not stored, because no change was applied.
func printSynced(a *app, r *caisson.SyncReceipt, dropped int) error {
	var did []string
	if len(r.Entries) > 0 || dropped == 0 {
		did = append(did, "applied "+plural(len(r.Entries), "path"))
	}
	if dropped > 0 {
		did = append(did, "dropped "+plural(dropped, "change"))
	}
	if r.Waiting > 0 {
		did = append(did, plural(r.Waiting, "change")+" remaining in the workspace")
	}
	a.infof("caisson: %s", strings.Join(did, ", "))
	if r.Held != "" {
		a.infof("caisson: %s", safetext.Escape(r.Held))
	}
	if r.ID == "" {
		if a.globals.Output != "table" {
			return a.encode(r)
		}
		return nil
	}
	return printDone(a, r, string(r.ID))
}

func receiptID(r *caisson.SyncReceipt) string { return string(r.ID) }

// syncUndoCmd undoes a sync.
type syncUndoCmd struct {
	Receipt string `arg:"" optional:"" help:"Id of the receipt, see sync log; without it the last sync into this directory." complete:"receipt"`
}

func (c *syncUndoCmd) Help() string {
	return `Puts back what the sync has changed, all of it or nothing: if one of the files has changed on the host since, it is a conflict. The
changes are pending in the workspace again.

` + examples("caisson sync undo", "caisson sync undo rc-abcdefghijklmnop")
}

// ProvideID parses the id of the receipt; it returns "" if the argument was not given.
func (c *syncUndoCmd) ProvideID() (caisson.ID, error) { return parseOptional(parseReceipt, c.Receipt) }

func (c *syncUndoCmd) Run(ctx context.Context, a *app, id caisson.ID, api api) error {
	r, err := c.find(ctx, a, id, api)
	if err != nil {
		return err
	}
	id = r.ID
	w, err := api.GetWorkspace(ctx, string(r.Workspace))
	if err != nil {
		return err
	}
	dir, err := openWorkspace(a, w)
	if err != nil {
		return err
	}
	if r, err = api.Undo(ctx, id, dir); err != nil {
		return err
	}
	a.infof("caisson: %s restored", plural(len(r.Entries), "path"))
	return printDone(a, r, string(r.ID))
}

// find returns the receipt with this id or, if id is "", the newest one whose sync into the current directory, or one above it,
// is not undone.
func (c *syncUndoCmd) find(ctx context.Context, a *app, id caisson.ID, api api) (*caisson.SyncReceipt, error) {
	if id != "" {
		return api.GetReceipt(ctx, id)
	}
	if !a.overSocket() {
		return nil, caisson.Invalidf("receipt", "is required, because the daemon is on another machine; see caisson sync log")
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	isHere := containsDir(dir)
	list, _, err := api.ListReceipts(ctx, caisson.WorkspaceFilter{Limit: 1000})
	if err != nil {
		return nil, err
	}
	for _, r := range list { // ListReceipts returns the newest receipt first
		if r.State != caisson.ReceiptApplied {
			continue
		}
		if w, err := api.GetWorkspace(ctx, string(r.Workspace)); err == nil && isHere(w.Source) {
			return r, nil
		}
	}
	return nil, caisson.Errorf(caisson.NotFound, "no sync into %s or a directory above it can be undone; see caisson sync log", dir)
}

// syncLogCmd lists receipts.
type syncLogCmd struct {
	Ref   string `arg:"" optional:"" name:"workspace" help:"Only of the workspace, sandbox or run with this id." complete:"workspace"`
	Count int    `help:"How many." short:"n" default:"20" placeholder:"N"`
}

func (c *syncLogCmd) Help() string {
	return examples("caisson sync log", "caisson sync log -n 100 -o json", "caisson sync log rn-abcdefghijklmnop")
}

// ProvideFilter returns the filter that the arguments specify.
func (c *syncLogCmd) ProvideFilter() (f caisson.WorkspaceFilter, err error) {
	if c.Count < 1 {
		return f, usagef("sync log", "--count must be at least 1")
	}
	if c.Ref == "" {
		return f, nil
	}
	for prefix, to := range map[string]*caisson.ID{
		caisson.WorkspacePrefix: &f.Workspace, caisson.SandboxPrefix: &f.Sandbox, caisson.RunPrefix: &f.Run,
	} {
		if id, err := caisson.ParseID(prefix, c.Ref); err == nil {
			*to = id
			return f, nil
		}
	}
	return f, caisson.Invalidf("workspace", "%.40q is not the id of a workspace, sandbox or run; see caisson workspace ls", c.Ref)
}

func (c *syncLogCmd) Run(ctx context.Context, a *app, f caisson.WorkspaceFilter, api api) error {
	return asList(a, []column[*caisson.SyncReceipt]{
		{name: "ID", value: receiptID},
		{name: "STATE", value: func(r *caisson.SyncReceipt) string { return r.State }, color: func(r *caisson.SyncReceipt) string {
			if r.State == caisson.ReceiptApplied {
				return "32"
			}
			return plainColor
		}},
		{name: "AGE", value: func(r *caisson.SyncReceipt) string { return age(r.At) }},
		{name: "BY", value: func(r *caisson.SyncReceipt) string { return r.By }},
		{name: "SYNC", value: func(r *caisson.SyncReceipt) string { return string(r.Mode) }},
		{name: "PATHS", value: func(r *caisson.SyncReceipt) string { return strconv.Itoa(len(r.Entries)) }},
		{name: "WORKSPACE", value: func(r *caisson.SyncReceipt) string { return string(r.Workspace) }},
	})(collectPages(c.Count, receiptID, func(before string, limit int) ([]*caisson.SyncReceipt, bool, error) {
		f.Before, f.Limit = caisson.ID(before), limit
		return api.ListReceipts(ctx, f)
	}))
}

// syncShowCmd shows the receipt of a sync.
type syncShowCmd struct {
	Receipt string `arg:"" help:"Id of the receipt; see sync log." complete:"receipt"`
}

func (c *syncShowCmd) Help() string {
	return examples("caisson sync show rc-abcdefghijklmnop", "caisson sync show rc-abcdefghijklmnop -o json")
}

// ProvideID parses the id of the receipt.
func (c *syncShowCmd) ProvideID() (caisson.ID, error) { return parseReceipt(c.Receipt) }

func (c *syncShowCmd) Run(ctx context.Context, a *app, id caisson.ID, api api) error {
	return asOne(a, receiptID, receiptRows)(api.GetReceipt(ctx, id))
}

// receiptRows returns the properties of the receipt of a sync, as pairs of a name and a value.
func receiptRows(r *caisson.SyncReceipt) [][2]string {
	rows := [][2]string{
		{"ID", string(r.ID)}, {"State", r.State}, {"Workspace", string(r.Workspace)}, {"Run", string(r.Run)}, {"Sandbox", string(r.Sandbox)},
		{"By", r.By}, {"Sync", string(r.Mode)}, {"Applied", formatTime(r.At)}, {"Undone", formatTime(r.UndoneAt)}, {"Checks", strings.Join(r.Checks, ", ")},
		{"Remaining changes", strconv.Itoa(r.Waiting)},
	}
	for _, e := range r.Entries {
		note := ""
		if e.Merged {
			note = " (merged)"
		}
		rows = append(rows, [2]string{"Path", fmt.Sprintf("%s %s%s", e.Kind, e.Path, note)})
	}
	return rows
}
