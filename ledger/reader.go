package ledger

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// Limits of reading a journal, whose writer is untrusted.
const (
	readBytes    = 1 << 20         // maximum size of a chunk
	maxJournal   = 2 * rotateBytes // maximum size of a journal in bytes
	maxOpenCalls = 100_000         // maximum number of calls that are not settled
	maxClockSkew = 24 * time.Hour  // maximum by which a meter's clock may be ahead of the current time
)

// reader reads a journal and stores its calls.
type reader struct {
	f      *os.File  // open until the journal is removed
	rows   rowStore  // stores the calls
	owners ownerFunc // looks up the accounts of guests
	now    func() time.Time
	log    *slog.Logger

	mu     sync.Mutex // guards rows.lost and the fields below; held while the journal is read and finished
	offset int64      // offset up to which this process has read the journal
	// ingested is the offset up to which an earlier process has ingested the journal. The rows before it are in the store, and
	// the sandboxes that made their calls may have been removed since.
	ingested  int64
	boot      string                  // boot id in the header of the journal
	openCalls map[caisson.ID]openCall // calls that have begun and are not settled
	damage    error                   // error because of which reading has stopped; nil while the journal is valid
	closed    bool                    // whether the journal was closed in the store
}

// openCall is a call that has begun and is not settled.
type openCall struct {
	row           caisson.Call // row that is stored if the call is never settled
	misattributed bool         // the row names an account that does not own its sandbox or run
}

// chunk is the result of parsing the part of the journal from the offset that was reached before.
type chunk struct {
	size    int64          // bytes of the parsed records
	rows    []caisson.Call // settled calls
	changes []change       // calls that began or were settled, in order
	header  *header        // header of the journal; nil if the chunk does not contain it
	damage  error          // why the record after the chunk is not valid; nil if it is valid
}

// change records that a call began or was settled.
type change struct {
	begin bool       // true: the call began; false: it was settled
	id    caisson.ID // id of the call
	call  openCall   // the call, if it began
}

// ingest reads the journal up to its current end, and stores the calls.
func (r *reader) ingest(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.read(ctx)
}

// read reads the journal up to its current end, and stores the calls. The caller must hold mu.
func (r *reader) read(ctx context.Context) error {
	if r.closed || r.damage != nil {
		return nil
	}
	info, err := r.f.Stat()
	if err != nil {
		return err
	}
	end := info.Size()
	switch {
	case end < max(r.offset, r.ingested):
		r.markDamaged(ctx, errors.New("the journal has become shorter"))
		return nil
	case end > maxJournal:
		r.markDamaged(ctx, errors.New("the journal is longer than its maximum"))
		return nil
	case end == r.offset:
		return nil
	}
	// Sync the journal before the store: after a power failure, the store must not contain more than the journal, and calls in
	// progress are recorded in the journal only.
	if err := unix.Fdatasync(int(r.f.Fd())); err != nil {
		return err
	}
	for r.offset < end && r.damage == nil {
		c, err := r.chunk(end)
		if err != nil {
			return err
		}
		if c.size == 0 && c.damage == nil {
			return nil // the last record is incomplete and still being written
		}
		if err := r.commit(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// chunk parses the next part of the journal, up to the offset end at most. It has no side effects.
func (r *reader) chunk(end int64) (c chunk, err error) {
	// End the chunk at the offset that an earlier process has reached, so that a chunk is either in the store as a whole or not
	// at all.
	if r.offset < r.ingested {
		end = min(end, r.ingested)
	}
	b := make([]byte, min(end-r.offset, readBytes))
	n, err := r.f.ReadAt(b, r.offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return c, err
	}
	b = b[:n]
	pending := map[caisson.ID]*openCall{} // calls that changed in this chunk; nil: settled
	for len(b) > 0 {
		rec, size, err := decodeRecord(b)
		if errors.Is(err, errIncomplete) {
			break
		}
		if err == nil {
			err = r.apply(&c, rec, pending)
		}
		if caisson.KindOf(err) == caisson.Unavailable {
			return c, err // the chunk is discarded and read again later
		}
		if err != nil {
			c.damage = err
			break
		}
		c.size += size
		b = b[size:]
	}
	return c, nil
}

// apply adds a record of the journal to the chunk c. pending contains the calls that records of the same chunk have changed; the
// value is nil for calls that were settled.
func (r *reader) apply(c *chunk, rec record, pending map[caisson.ID]*openCall) error {
	first := r.offset+c.size == 0
	switch {
	case (rec.kind == kindHeader) != first:
		return errors.New("a header is missing, or is not the first record")
	case first && rec.header.journal != r.rows.journal:
		return errors.New("the journal has the header of another")
	case first:
		c.header = &rec.header
		return nil
	}
	id := rec.call.ID
	open, changed := pending[id]
	if !changed {
		if o, ok := r.openCalls[id]; ok {
			open = &o
		}
	}
	if rec.kind == kindBegin {
		if open != nil || len(r.openCalls)+len(pending) > maxOpenCalls {
			return errors.New("a call begins twice, or too many are under way")
		}
		lies, err := r.misattributed(&rec.call)
		if err != nil {
			return err
		}
		o := openCall{row: rec.call, misattributed: lies}
		// The host's clock was corrected, or the writer is compromised. In both cases the call was made no later than now.
		if now := r.now().UTC().Round(0); o.row.At.After(now.Add(maxClockSkew)) {
			o.row.At = now
		}
		o.row.Error, o.row.Status, o.row.Estimated = "lost", 0, true
		pending[id] = &o
		c.changes = append(c.changes, change{begin: true, id: id, call: o})
		return nil
	}
	if open == nil {
		return errors.New("a call was settled that has not begun")
	}
	pending[id] = nil
	c.changes = append(c.changes, change{id: id})
	if !open.misattributed {
		row := rec.call
		row.At, row.Guest = open.row.At, open.row.Guest
		c.rows = append(c.rows, row)
	}
	return nil
}

// misattributed reports whether a call names an account that does not own its sandbox or run, which means that the process that
// wrote the call is compromised.
func (r *reader) misattributed(c *caisson.Call) (bool, error) {
	account, ok, err := r.owners.owner(c.Guest)
	switch {
	case err != nil:
		return false, err
	case ok && account == c.Account:
		return false, nil
	case !ok && r.offset < r.ingested:
		return false, nil // An earlier process has checked the account. The sandbox was removed since then.
	}
	r.log.Error("a call was dropped: its sandbox or run is not known to be that account's",
		"journal", r.rows.journal, "call", c.ID, "sandbox", c.Sandbox, "run", c.Run, "account", c.Account, "at", c.At)
	return true, nil
}

// commit stores the calls of the chunk c and, if that succeeds, updates the state of r.
func (r *reader) commit(ctx context.Context, c chunk) error {
	if from, to := r.offset, r.offset+c.size; to > from && from >= r.ingested {
		err := r.rows.ingest(ctx, from, to, c.rows)
		switch kind := caisson.KindOf(err); {
		case err == nil:
		case kind == caisson.Invalid, kind == caisson.Conflict && !r.rows.closedInStore(ctx, err):
			r.markDamaged(ctx, err) // A retry would fail too.
			return nil
		default:
			return err
		}
	}
	r.offset += c.size
	if c.header != nil {
		r.boot = c.header.boot
	}
	for _, ch := range c.changes {
		if ch.begin {
			r.openCalls[ch.id] = ch.call
		} else {
			delete(r.openCalls, ch.id)
		}
	}
	if c.damage != nil {
		r.markDamaged(ctx, c.damage)
	}
	return nil
}

// markDamaged stops the reading of a journal whose contents are not valid because of err. The journal is later closed as if its
// end were lost.
func (r *reader) markDamaged(ctx context.Context, err error) {
	r.damage = err
	r.log.ErrorContext(ctx, "a journal is damaged; the leases of its gateway will count as spent",
		"journal", r.rows.journal, "offset", r.offset, "err", err)
}

// isDamaged reports whether reading has stopped because the journal is damaged.
func (r *reader) isDamaged() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.damage != nil
}

// finish reads the rest of the journal, stores the calls that were not settled, and closes the journal in the store. The caller
// must hold mu.
func (r *reader) finish(ctx context.Context, bootID func() (string, error)) error {
	if err := r.waitUnlocked(ctx); err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	if err := r.read(ctx); err != nil && !r.rows.closedInStore(ctx, err) {
		return err
	}
	if rows := r.unsettled(); len(rows) > 0 {
		at := max(r.offset, r.ingested)
		if err := r.rows.ingest(ctx, at, at, rows); err != nil && !r.rows.closedInStore(ctx, err) {
			return err
		}
	}
	if err := r.rows.close(ctx, r.damage != nil || r.boot != boot || r.offset < r.ingested); err != nil {
		return err
	}
	r.closed = true
	return nil
}

// inFlight returns the number of calls of a run that have begun and are not settled, and their maximum cost.
func (r *reader) inFlight(account, run string) (calls int64, most caisson.USD) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, 0
	}
	for _, o := range r.openCalls {
		if !o.misattributed && o.row.Account == account && o.row.Run == run {
			calls++
			most = caisson.Amount{USD: most}.Plus(caisson.Amount{USD: o.row.Cost}).USD
		}
	}
	return calls, most
}

// unsettled returns the rows of calls that have begun and are not settled, oldest first.
func (r *reader) unsettled() []caisson.Call {
	var rows []caisson.Call
	for _, o := range r.openCalls {
		if !o.misattributed {
			rows = append(rows, o.row)
		}
	}
	slices.SortFunc(rows, func(a, b caisson.Call) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID))
	})
	return rows
}

// rowStore stores and logs the rows of one journal. It is not safe for concurrent use.
type rowStore struct {
	store   caisson.LedgerStore
	journal caisson.ID
	log     *slog.Logger
	lost    bool // whether a row could not be stored
}

// ingest stores and logs the rows of the journal between the offsets from and to. Rows that the store rejects are dropped.
func (s *rowStore) ingest(ctx context.Context, from, to int64, rows []caisson.Call) error {
	err := s.store.Ingest(ctx, s.journal, from, to, rows)
	if caisson.KindOf(err) == caisson.Conflict && to > from {
		// The last attempt may have been committed although it returned an error.
		if at, offsetErr := s.store.Offset(ctx, s.journal); offsetErr == nil && at == to {
			err = nil
		}
	}
	if caisson.KindOf(err) == caisson.Invalid {
		rows, err = s.oneByOne(ctx, from, to, rows)
	}
	if err != nil {
		return err
	}
	for i := range rows {
		s.audit(ctx, &rows[i])
	}
	return nil
}

// oneByOne stores rows individually after the store has rejected all of them because of some, and returns the stored rows. Rows
// that are in the store already are not stored twice.
func (s *rowStore) oneByOne(ctx context.Context, from, to int64, rows []caisson.Call) ([]caisson.Call, error) {
	var stored []caisson.Call
	for i := range rows {
		err := s.store.Ingest(ctx, s.journal, from, from, rows[i:i+1])
		switch {
		case err == nil:
			stored = append(stored, rows[i])
		case caisson.KindOf(err) != caisson.Invalid:
			return nil, err
		default:
			s.lost = true
			s.log.ErrorContext(ctx, "a call cannot be stored and is dropped; the leases of its gateway will count as spent",
				"journal", s.journal, "call", rows[i].ID, "account", rows[i].Account, "err", err)
		}
	}
	if to == from {
		return stored, nil
	}
	return stored, s.store.Ingest(ctx, s.journal, from, to, nil)
}

// audit logs a call, without its prompt and answer.
func (s *rowStore) audit(ctx context.Context, c *caisson.Call) {
	s.log.LogAttrs(ctx, slog.LevelInfo, "model call", slog.String("call", string(c.ID)), slog.Time("at", c.At),
		slog.String("account", c.Account), slog.String("sandbox", string(c.Sandbox)), slog.String("run", c.Run),
		slog.String("agent", c.Agent), slog.String("trace", c.Trace), slog.String("model", c.Model),
		slog.String("provider", c.Provider), slog.Int64("input", c.Tokens.Input), slog.Int64("output", c.Tokens.Output),
		slog.String("cost", c.Cost.String()), slog.Int("status", c.Status), slog.String("error", c.Error),
		slog.String("detail", c.Detail), slog.Bool("estimated", c.Estimated))
}

// closedInStore reports whether err means that an earlier process closed the journal in the store and was killed before it
// removed the file. All rows are in the store then.
func (s *rowStore) closedInStore(ctx context.Context, err error) bool {
	if caisson.KindOf(err) != caisson.Conflict {
		return false
	}
	open, err := s.store.Open(ctx)
	return err == nil && !slices.Contains(open, s.journal)
}

// close closes the journal in the store. lost reports whether the end of the journal is lost.
func (s *rowStore) close(ctx context.Context, lost bool) error {
	lost = lost || s.lost
	if lost {
		s.log.WarnContext(ctx, "the end of a journal is lost; what its gateway held of budgets counts as spent", "journal", s.journal)
	}
	return s.store.Close(ctx, s.journal, lost)
}

// errLocked means that a process has the journal open for writing.
var errLocked = errors.New("the journal is locked")

// waitUnlocked waits until no process has the journal open for writing. Returns Conflict after lockWait.
func (r *reader) waitUnlocked(ctx context.Context) error {
	deadline := time.NewTimer(lockWait)
	defer deadline.Stop()
	for {
		// The lock belongs to the open file of the processes that write. r.f is a separate open file, so that its lock conflicts
		// with that lock.
		free, err := r.tryLock()
		if free || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return caisson.Wrap(errLocked, caisson.Conflict, "a process still writes to journal %s; stop it first", r.rows.journal)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tryLock reports whether no process has the journal open for writing, by locking the journal and unlocking it again.
func (r *reader) tryLock() (bool, error) {
	err := unix.Flock(int(r.f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, unix.Flock(int(r.f.Fd()), unix.LOCK_UN)
}
