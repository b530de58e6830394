package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/caisson-dev/caisson"
)

// priceStmts are the statements about imported prices.
type priceStmts struct {
	clear *sql.Stmt // Deletes the prices imported from a source.
	put   *sql.Stmt // Inserts or replaces a price.
	// find returns one price of a model of a provider. A price listed for "provider/model" precedes one for "model", a price from
	// that provider one from another, and a newer price an older one.
	find *sql.Stmt
	list *sql.Stmt // Returns the prices of models that match a LIKE pattern.
}

// newPriceStmts prepares the statements for prices.
func newPriceStmts(p *preparer) priceStmts {
	return priceStmts{
		clear: p.write(`DELETE FROM price WHERE source = ?`),
		put:   p.write(`REPLACE INTO price (source, model, provider, at, doc) VALUES (?, ?, ?, ?, ?)`),
		find: p.read(`SELECT doc FROM price WHERE model IN (?1 || '/' || ?2, ?2)
			ORDER BY model = ?2, provider <> ?1, at DESC, source LIMIT 1`),
		list: p.read(`SELECT doc FROM price WHERE model LIKE ? ESCAPE '\' ORDER BY model, provider, source`),
	}
}

// PutPrices implements [caisson.LedgerStore]. It replaces all prices of the source.
func (l *ledger) PutPrices(ctx context.Context, source string, prices []caisson.ListedPrice) error {
	return l.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.StmtContext(ctx, l.prices.clear).ExecContext(ctx, source); err != nil {
			return err
		}
		put := tx.StmtContext(ctx, l.prices.put)
		for _, p := range prices {
			p.Source = source
			doc, err := json.Marshal(p)
			if err != nil {
				return fmt.Errorf("encode the price of %.80q: %w", p.Model, err)
			}
			if _, err := put.ExecContext(ctx, source, p.Model, p.Provider, p.At.UnixMicro(), string(doc)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Price implements [caisson.LedgerStore].
func (l *ledger) Price(ctx context.Context, provider, model string) (*caisson.ListedPrice, error) {
	p, err := scanPrice(l.prices.find.QueryRowContext(ctx, provider, model))
	if err != nil {
		return nil, l.db.explainRow(err, caisson.Errorf(caisson.NotFound, "no imported list has a price of %.80q", model))
	}
	return &p, nil
}

// Prices implements [caisson.LedgerStore]. Prices are sorted by model. An empty match matches every name.
func (l *ledger) Prices(ctx context.Context, match string) ([]caisson.ListedPrice, error) {
	list, err := readRows(scanPrice)(l.prices.list.QueryContext(ctx, likePattern(match)))
	return list, l.db.explain(err)
}

// scanPrice reads the column doc of a price.
func scanPrice(s scanner) (p caisson.ListedPrice, err error) {
	err = scanDoc(s, "price", &p)
	return p, err
}
