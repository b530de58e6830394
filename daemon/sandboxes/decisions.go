package sandboxes

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/background"
)

// maxQueuedLists is the maximum number of lists of decisions in the queue for one account. droppedInterval is the minimum
// time between log messages about dropped decisions.
const (
	maxQueuedLists  = 128
	droppedInterval = 10 * time.Second
)

// decisions records the egress decisions of wires in the background, because wires must not wait for the disk. Its
// goroutine runs only while the queue is not empty.
type decisions struct {
	events     caisson.Publisher
	background *background.Group // background goroutines of the core
	log        *slog.Logger

	mu      sync.Mutex
	queue   []guestDecisions // lists of decisions that are not recorded yet; guarded by mu
	waiting map[string]int   // number of lists in the queue by account; guarded by mu
	running bool             // whether the goroutine runs; guarded by mu
	dropped int              // number of decisions dropped since the last log message about them; guarded by mu
	warned  time.Time        // time of the last log message about dropped decisions; guarded by mu
}

// guestDecisions is a list of decisions of the wire of one guest, as the wire process reported it.
type guestDecisions struct {
	guest caisson.Guest      // guest whose wire has decided
	list  []caisson.Decision // decisions of the wire
}

// add queues the decisions of a guest's wire to be recorded. It drops them if the queue of the guest's account is full.
func (d *decisions) add(g caisson.Guest, list []caisson.Decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting[g.Account] >= maxQueuedLists { // The limit is per account: decisions of other accounts are still recorded.
		d.dropped += len(list)
		if now := time.Now(); now.Sub(d.warned) >= droppedInterval {
			d.log.Warn("decisions of wires were not recorded: there are too many", "decisions", d.dropped, "sandbox", g.Sandbox)
			d.dropped, d.warned = 0, now
		}
		return
	}
	if d.waiting == nil {
		d.waiting = map[string]int{}
	}
	d.waiting[g.Account]++
	d.queue = append(d.queue, guestDecisions{g, list})
	if !d.running {
		d.running = d.background.Start(d.run)
	}
}

// run records decisions until the queue is empty. Decisions that are queued when the daemon stops are recorded before it exits.
func (d *decisions) run(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	for {
		d.mu.Lock()
		batch := d.queue
		d.queue, d.waiting = nil, nil
		d.running = len(batch) > 0
		d.mu.Unlock()
		for _, r := range batch {
			d.record(ctx, r.guest, r.list)
		}
		if len(batch) == 0 {
			return
		}
	}
}

// record stores a list of decisions in one transaction: one transaction per decision would be slower than the wires produce them.
func (d *decisions) record(ctx context.Context, g caisson.Guest, list []caisson.Decision) {
	ctx = caisson.WithGuest(ctx, g)
	whose := guestFields(g)
	events := make([]*caisson.Event, 0, len(list))
	for _, dec := range list {
		data := decisionFields(&dec)
		maps.Copy(data, whose)
		args := []any{"sandbox", g.Sandbox, "account", g.Account}
		for _, k := range slices.Sorted(maps.Keys(data)) {
			args = append(args, k, data[k])
		}
		kind := "egress.denied"
		if dec.Allowed {
			kind = "egress.allowed"
		}
		d.log.InfoContext(ctx, kind, args...)
		events = append(events, &caisson.Event{Account: g.Account, Type: kind, Subject: string(g.Sandbox), Data: data})
	}
	d.events.PublishAll(ctx, events)
}

// maxDecisionText is the maximum length in bytes of each text in the event of a decision. The wire process, which sends the
// texts, is not trusted to limit them.
const maxDecisionText = 300

// guestFields returns the run, agent, attempt and trace of a guest as fields of an event. Fields that are not set are
// omitted, and so is the run of a sandbox that serves no run, which is the sandbox's own id.
func guestFields(g caisson.Guest) map[string]string {
	data := map[string]string{}
	for k, v := range map[string]string{"run": g.Run, "agent": g.Agent, "trace": g.Trace} {
		if v != "" && v != string(g.Sandbox) {
			data[k] = v
		}
	}
	if g.Attempt != 0 {
		data["attempt"] = strconv.Itoa(g.Attempt)
	}
	return data
}

// decisionFields returns a decision as fields of an event, each at most maxDecisionText bytes long.
func decisionFields(d *caisson.Decision) map[string]string {
	data := map[string]string{"kind": d.Kind, "rule": strconv.Itoa(d.Rule), "reason": d.Reason, "count": strconv.FormatInt(d.Count, 10)}
	for k, v := range map[string]string{"name": d.Name, "address": d.Address, "protocol": d.Protocol} {
		if v != "" {
			data[k] = v
		}
	}
	if d.BytesOut > 0 || d.BytesIn > 0 {
		data["bytesOut"], data["bytesIn"] = strconv.FormatInt(d.BytesOut, 10), strconv.FormatInt(d.BytesIn, 10)
	}
	for k, v := range data {
		data[k] = v[:min(len(v), maxDecisionText)]
	}
	return data
}
