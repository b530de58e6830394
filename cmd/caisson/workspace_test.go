package main

import (
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestWorkspaceChoice: the newest workspace that may have pending changes is chosen, and others that have some are named.
func TestWorkspaceChoice(t *testing.T) {
	t.Parallel()
	var c workspaceChoice
	for _, w := range []*caisson.Workspace{
		{Sandbox: "sb-settled", State: caisson.WorkspaceSettled}, {Sandbox: "sb-new", State: caisson.WorkspaceLive}, {Run: "rn-old", State: caisson.WorkspaceDetached, Changes: 1},
		{Run: "rn-none", State: caisson.WorkspaceDetached}, {Run: "rn-oldest", State: caisson.WorkspaceSettled},
	} {
		c.add(w)
	}
	want := "this is the newest workspace, of sb-new; there are also changes in those of rn-old; to use one of them, give its id"
	if c.pending.Sandbox != "sb-new" || c.settled.Sandbox != "sb-settled" || c.note() != want {
		t.Errorf("%+v: %s", c, c.note())
	}
}
