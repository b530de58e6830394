package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/caisson-dev/caisson"
)

// deliveries is a [caisson.DeliveryStore].
type deliveries struct {
	db      *db
	get     *sql.Stmt
	getHere *sql.Stmt // for transactions of the writer
	place   *sql.Stmt
	insert  *sql.Stmt
	update  *sql.Stmt
	remove  *sql.Stmt
}

var _ caisson.DeliveryStore = (*deliveries)(nil)

func newDeliveries(p *preparer) *deliveries {
	// What is a delivery's id is no run's: their prefixes differ.
	const one = `SELECT seq, doc FROM (
			SELECT seq, account, doc FROM delivery WHERE id = ?1
			UNION ALL SELECT seq, account, doc FROM delivery WHERE run = ?1 AND run <> ''
		) WHERE ?2 IS NULL OR account = ?2 ORDER BY seq DESC LIMIT 1`
	return &deliveries{
		db:      p.db,
		get:     p.read(one),
		getHere: p.write(`SELECT seq, doc FROM delivery WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`),
		place:   p.read(`SELECT max(seq) FROM delivery WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`),
		insert:  p.write(`INSERT INTO delivery (id, account, repo, run, state, doc) VALUES (?, ?, ?, ?, ?, ?)`),
		update:  p.write(`UPDATE delivery SET state = ?, doc = ? WHERE seq = ?`),
		remove:  p.write(`DELETE FROM delivery WHERE id = ?1 AND (?2 IS NULL OR account = ?2)`),
	}
}

// Insert implements [caisson.DeliveryStore].
func (s *deliveries) Insert(ctx context.Context, d *caisson.Delivery) error {
	if d.ID == "" || d.Account == "" || d.Repo == "" {
		return caisson.Errorf(caisson.Internal, "a delivery without an id, account or repository cannot be stored")
	}
	doc, err := encodeDelivery(d)
	if err != nil {
		return err
	}
	_, err = s.db.writeOne(ctx, s.insert, string(d.ID), d.Account, d.Repo, string(d.Run), string(d.State), string(doc))
	if taken(err) {
		return caisson.Wrap(err, caisson.Conflict, "delivery %s exists already", d.ID)
	}
	return err
}

// Get implements [caisson.DeliveryStore].
func (s *deliveries) Get(ctx context.Context, in caisson.Scope, ref string) (*caisson.Delivery, error) {
	r, err := scanDelivery(s.get.QueryRowContext(ctx, ref, accountOf(in)), ref)
	if err != nil {
		return nil, s.db.explain(err)
	}
	return decodeDelivery(r.doc)
}

// List implements [caisson.DeliveryStore].
func (s *deliveries) List(ctx context.Context, in caisson.Scope, f caisson.DeliveryFilter) ([]*caisson.Delivery, bool, error) {
	q := &query{}
	q.sql.WriteString("SELECT doc FROM delivery WHERE true")
	if f.Repo != "" {
		q.and("repo = ?", f.Repo)
	}
	if f.Run != "" {
		q.and("run = ?", string(f.Run))
	}
	oneOf(q, "state", f.States)
	return docPage(ctx, s.db, q, in, f.Before, f.Limit, s.place, decodeDelivery)
}

// Update implements [caisson.DeliveryStore]. The repository and the run cannot be changed either.
func (s *deliveries) Update(ctx context.Context, in caisson.Scope, id caisson.ID, change func(*caisson.Delivery) error) (*caisson.Delivery, error) {
	var d *caisson.Delivery
	var refused error // by change: returned as it is
	err := s.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r, err := scanDelivery(tx.StmtContext(ctx, s.getHere).QueryRowContext(ctx, string(id), accountOf(in)), string(id))
		if err != nil {
			return err
		}
		if d, err = decodeDelivery(r.doc); err != nil {
			return err
		}
		was := *d
		if refused = change(d); refused != nil {
			return refused
		}
		if d.ID != was.ID || d.Account != was.Account || d.Repo != was.Repo || d.Run != was.Run {
			return caisson.Errorf(caisson.Internal, "an update of delivery %s changed whose it is", was.ID)
		}
		doc, err := encodeDelivery(d)
		if err != nil || bytes.Equal(doc, r.doc) {
			return err // if nothing has changed, this saves the sync
		}
		_, err = tx.StmtContext(ctx, s.update).ExecContext(ctx, string(d.State), string(doc), r.seq)
		return err
	})
	switch {
	case refused != nil:
		return nil, refused
	case err != nil:
		return nil, err
	}
	return d, nil
}

// Delete implements [caisson.DeliveryStore].
func (s *deliveries) Delete(ctx context.Context, in caisson.Scope, id caisson.ID) error {
	n, err := s.db.writeOne(ctx, s.remove, string(id), accountOf(in))
	if err == nil && n == 0 {
		err = noDelivery(string(id))
	}
	return err
}

func encodeDelivery(d *caisson.Delivery) ([]byte, error) {
	doc, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode delivery %s: %w", d.ID, err)
	}
	return doc, nil
}

func decodeDelivery(doc []byte) (*caisson.Delivery, error) {
	d := &caisson.Delivery{}
	if err := json.Unmarshal(doc, d); err != nil {
		return nil, fmt.Errorf("decode stored delivery: %w", err)
	}
	return d, nil
}

func scanDelivery(s scanner, ref string) (r row, err error) {
	err = s.Scan(&r.seq, &r.doc)
	if errors.Is(err, sql.ErrNoRows) {
		err = noDelivery(ref)
	}
	return r, err
}

func noDelivery(ref string) error {
	return caisson.Errorf(caisson.NotFound, "there is no delivery %.40q, and no run of that id has one; see caisson relay ls", ref)
}
