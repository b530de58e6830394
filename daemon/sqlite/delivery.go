package sqlite

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// deliveries implements [caisson.DeliveryStore].
type deliveries struct{ *idTable[caisson.Delivery] }

var _ caisson.DeliveryStore = deliveries{}

// newDeliveries returns the part of the store for deliveries, with its statements prepared by p.
func newDeliveries(p *preparer) deliveries {
	return deliveries{newIDTable(p, "delivery", &idTable[caisson.Delivery]{
		docs: docs[caisson.Delivery]{
			noun: "delivery", required: 3, requiredNames: "an id, account or repository", fixedNames: "its id, account, repository or run",
			fixed: func(d *caisson.Delivery) []string {
				return []string{string(d.ID), d.Account, d.Repo, string(d.Run)}
			},
			columns: func(d *caisson.Delivery) []any { return []any{string(d.State)} },
			insert:  p.write(`INSERT INTO delivery (id, account, repo, run, state, doc) VALUES (?, ?, ?, ?, ?, ?)`),
			update:  p.write(`UPDATE delivery SET state = ?, doc = ? WHERE seq = ?`),
		},
		notFoundFormat: "there is no delivery %.40q, and no run of that id has one; see caisson relay ls",
		// The parameter ?1 is the ID of a delivery or of a run. It cannot match both, because the prefixes of these IDs differ.
		get: p.read(`SELECT seq, doc FROM (
			SELECT seq, account, doc FROM delivery WHERE id = ?1
			UNION ALL SELECT seq, account, doc FROM delivery WHERE run = ?1 AND run <> ''
		) WHERE ?2 IS NULL OR account = ?2 ORDER BY seq DESC LIMIT 1`),
		remove: p.write(`DELETE FROM delivery WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`),
	})}
}

// List implements [caisson.DeliveryStore].
func (s deliveries) List(ctx context.Context, in caisson.Scope, f caisson.DeliveryFilter) ([]*caisson.Delivery, bool, error) {
	q := newQuery("SELECT doc FROM delivery WHERE true")
	q.andIfSet("repo =", f.Repo)
	q.andIfSet("run =", string(f.Run))
	oneOf(q, "state", f.States)
	return s.list(ctx, q, in, f.Before, f.Limit)
}
