package test_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

// TestBackup tests that a backup that is made while sandboxes spend and objects are made is one of an instant, and that a daemon on another data
// directory which was restored from it has the same agents, credentials, receipts and events, and what was spent. The first daemon runs on meanwhile.
func TestBackup(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, caisson.ProviderLiteLLM, billedScript, false, nil)
	h := newModelHost(t, []*upstream{u}, priced("m", "litellm", "proxied-1"))
	h.agentsDir(map[string]string{"mine": "image: host\ndriver: exec\ncommand: [/bin/sh, -c, '{prompt}']\nmodels: ['-']\n"})
	h.ok("budget", "set", "--usd", "100")
	h.client("spends", "--model", "m")
	dir := h.userDir("project", map[string]string{"a.txt": "original\n"})
	run := h.script(dir, "echo changed > a.txt")
	h.ok("sync", "--yes", string(run.ID))
	h.ok("sandbox", "snapshot", "spends", "--name", "kept")
	for range 3 {
		h.works("spends")
	}
	before := h.total()

	stop, first := make(chan struct{}), make(chan struct{})
	var loops sync.WaitGroup
	for i, each := range []func(){
		func() { h.call("spends", chat("loop", "m", "Pay for this.")) },
		func() {
			h.ok("template", "put", h.write("loop.yaml", "name: loop\nimage: host\nlabels: {a: b}\n"))
			h.ok("template", "rm", "loop")
		},
	} {
		loops.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
					each()
				}
				if i == 0 && n == 0 {
					close(first)
				}
			}
		})
	}
	<-first
	file := filepath.Join(h.dir, "backup")
	h.ok("backup", file)
	close(stop)
	loops.Wait()
	after := h.total()

	r := &modelHost{host: newHost(t), caller: h.caller}
	r.ok("restore", file)
	restored := filepath.Join(r.data, "restored")
	config, err := os.ReadFile(filepath.Join(restored, "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	r.configure(strings.ReplaceAll(string(config), filepath.Join(h.dir, "agents"), filepath.Join(restored, "agents")))
	if report := shows[caisson.AuditReport](r.host, "audit", "verify"); report.Problem != "" || report.Events < 10 {
		t.Errorf("the events: %+v", report)
	}
	if got := r.total(); got.Calls <= before.Calls || got.Calls > after.Calls || got.Cost != caisson.USD(got.Calls)*billed.USD {
		t.Errorf("restored was a ledger of %+v; before the backup it was %+v, and after it %+v", got, before, after)
	}
	for _, b := range shows[[]caisson.Budget](r.host, "budget", "ls") {
		if strings.HasPrefix(b.Key, "account/") && (b.Used.USD < r.total().Cost || b.Limits.USD == nil || *b.Limits.USD != 100*caisson.Dollar) {
			t.Errorf("the budget is %+v; the ledger has %+v", b, r.total())
		}
	}
	r.balance()
	if diff := cmp.Diff(h.ok("credential", "ls", "-q"), r.ok("credential", "ls", "-q")); diff != "" {
		t.Errorf("credentials (-first +restored):\n%s", diff)
	}
	if a := r.succeeds("mine", "echo from the backup").Result.Answer; strings.TrimSpace(a) != "from the backup" {
		t.Errorf("the agent says %q", a)
	}
	// The key of the provider can be decrypted.
	u.Reset()
	r.client("again", "--model", "m")
	if a := r.call("again", chat("1", "m", "Pay for this.")); a.Status != http.StatusOK || u.Calls()[0].Header.Get("Authorization") != "Bearer "+u.key {
		t.Errorf("a call is answered %d %s", a.Status, a.Body)
	}
	// Nothing of what is not in it seems to be there.
	if sb := r.show("spends"); sb.State != caisson.Failed || sb.Reason == "" {
		t.Errorf("the sandbox is %s: %s", sb.State, sb.Reason)
	}
	r.fails(4, "", "exec", "spends", "--", "true")
	r.fails(3, "", "snapshot", "show", "kept")
	r.ok("sandbox", "rm", "spends")
	if got := r.show("again").State; got != caisson.Running {
		t.Errorf("the new one is %s", got)
	}
	r.fails(4, "what its sandbox has written is gone from disk", "diff", string(run.ID))
	receipts := shows[[]caisson.SyncReceipt](r.host, "sync", "log")
	if len(receipts) != 1 {
		t.Fatalf("the receipts are %+v", receipts)
	}
	r.ok("sync", "undo", string(receipts[0].ID))
	if text, err := os.ReadFile(filepath.Join(dir, "a.txt")); err != nil || string(text) != "original\n" {
		t.Errorf("after the undo the file has %q, %v", text, err)
	}
	r.ok("sandbox", "rm", "again")

	// The first data directory is as it was.
	if sb := h.waitState("spends", caisson.Running); sb.Reason != "" || h.sh("spends", "echo here") != "here" {
		t.Errorf("the first sandbox is %+v", sb)
	}
	if got := h.total(); got.Calls != after.Calls {
		t.Errorf("the first ledger has %+v, not %+v", got, after)
	}
}
