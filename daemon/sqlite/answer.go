package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/caisson-dev/caisson"
)

// answers implements [caisson.AnswerStore]. The keys are the Idempotency-Keys of requests.
type answers struct {
	db        *db
	get       *sql.Stmt // Returns what is recorded for a key.
	insertKey *sql.Stmt // Records that the request with a key is in progress.
	setAnswer *sql.Stmt // Sets the answer of a key whose request is in progress.
	deleteKey *sql.Stmt // Deletes a key whose request is in progress.
	trim      *sql.Stmt // Deletes a batch of the keys that were recorded before a time.
}

// getAnswer returns what is recorded for a key: the fingerprint of its request, whether the request has an answer, and the
// answer.
const getAnswer = `SELECT fingerprint, answer IS NOT NULL, answer FROM answer WHERE account = ? AND key = ?`

// newAnswers returns the part of the store for answers to requests, with its statements prepared by p.
func newAnswers(p *preparer) *answers {
	return &answers{
		db:        p.db,
		get:       p.write(getAnswer),
		insertKey: p.write(`INSERT INTO answer (account, key, fingerprint, at) VALUES (?, ?, ?, ?)`),
		setAnswer: p.write(`UPDATE answer SET answer = ? WHERE account = ? AND key = ? AND answer IS NULL`),
		deleteKey: p.write(`DELETE FROM answer WHERE account = ? AND key = ? AND answer IS NULL`),
		trim:      p.write(`DELETE FROM answer WHERE seq IN (SELECT seq FROM answer WHERE at < ? LIMIT ?)`),
	}
}

// Begin implements [caisson.AnswerStore]. It returns nil, nil if the key is new and has been recorded for this request.
func (s *answers) Begin(ctx context.Context, account, key string, fingerprint [32]byte, now time.Time) (answer []byte, err error) {
	if account == "" || key == "" {
		return nil, caisson.Invalidf("Idempotency-Key", "must not be empty")
	}
	err = s.db.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var before []byte
		var answered bool
		err := tx.StmtContext(ctx, s.get).QueryRowContext(ctx, account, key).Scan(&before, &answered, &answer)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			_, err := tx.StmtContext(ctx, s.insertKey).ExecContext(ctx, account, key, fingerprint[:], now.UnixMicro())
			return err
		case err != nil:
			return err
		case !bytes.Equal(before, fingerprint[:]):
			return caisson.Invalidf("Idempotency-Key", "%.100q was used for another request; use a new key", key)
		case !answered:
			return caisson.Errorf(caisson.Conflict, "a request with the Idempotency-Key %.100q is still being worked on; try again later", key)
		}
		if answer == nil {
			answer = []byte{} // A stored empty answer is different from nil, which means that there is no answer.
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// Finish implements [caisson.AnswerStore]. It returns NotFound if no request with the key is in progress.
func (s *answers) Finish(ctx context.Context, account, key string, answer []byte) error {
	none := caisson.Errorf(caisson.NotFound, "no request with the Idempotency-Key %.100q is being worked on", key)
	if answer == nil {
		return s.db.writeFound(ctx, none, s.deleteKey, account, key)
	}
	return s.db.writeFound(ctx, none, s.setAnswer, answer, account, key)
}

// Trim implements [caisson.AnswerStore]. It deletes keys in batches; each batch is a separate transaction.
func (s *answers) Trim(ctx context.Context, before time.Time) error {
	for {
		n, err := s.db.writeOne(ctx, s.trim, before.UnixMicro(), trimBatch)
		if err != nil || n == 0 {
			return err
		}
	}
}
