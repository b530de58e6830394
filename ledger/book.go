package ledger

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

const (
	journalDir     = "ledger"               // subdirectory of the data directory
	journalExt     = ".journal"             // suffix of the names of journals
	damagedExt     = ".damaged"             // appended to the name of a journal that cannot be read
	ingestInterval = 250 * time.Millisecond // time between two ingestions of all journals
	// lockWait is the maximum wait for a process that is stopping to close its journal.
	lockWait = 5 * time.Second
)

// BookConfig configures a [Book].
type BookConfig struct {
	// Dir is the data directory; journals are in its subdirectory "ledger". Required. The caller closes Dir.
	Dir *os.Root
	// Store holds the ledger; required.
	Store caisson.LedgerStore
	// Owner returns the account of g's sandbox or, if g has no sandbox because it is on another machine, of its run; required.
	// Owner must ignore the other fields of g. A call is dropped if Owner returns NotFound or an account other than the call's.
	// After any other error, reading of the journal stops and is retried later.
	Owner func(g caisson.Guest) (account string, err error)
	// BootID returns the id of the current boot of the machine; nil: the id is read from the kernel.
	BootID func() (string, error)
	Now    func() time.Time // nil means time.Now
	Log    *slog.Logger     // receives one line per call, and the errors of journals; nil discards them
}

// A Book creates the journals of meters, reads them into the store and grants leases of budgets. It is safe for concurrent use.
type Book struct {
	dir    *os.Root // the data directory
	store  caisson.LedgerStore
	owners ownerFunc // looks up the accounts of guests
	bootID func() (string, error)
	now    func() time.Time
	log    *slog.Logger

	mu       sync.Mutex             // guards journals; acquired after the mu of a reader
	journals map[caisson.ID]*reader // readers of journals that are not finished; guarded by mu
}

// NewBook returns a book. Call Recover before the first call of Begin.
func NewBook(c BookConfig) (*Book, error) {
	if c.Dir == nil || c.Store == nil || c.Owner == nil {
		return nil, caisson.Errorf(caisson.Internal, "a book needs a directory, a store and the owners of sandboxes")
	}
	if c.BootID == nil {
		c.BootID = kernelBootID
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if err := c.Dir.Mkdir(journalDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return &Book{
		dir: c.Dir, store: c.Store, owners: c.Owner, bootID: c.BootID, now: c.Now, log: c.Log.With("component", "ledger"),
		journals: map[caisson.ID]*reader{},
	}, nil
}

// ownerFunc returns the account of g's sandbox, or of its run if g has no sandbox, or NotFound if there is none.
type ownerFunc func(g caisson.Guest) (account string, err error)

// owner returns the account of g; ok is false if g has none. An error is Unavailable, so that it is not taken for damage to the
// journal.
func (f ownerFunc) owner(g caisson.Guest) (account string, ok bool, err error) {
	account, err = f(g)
	switch {
	case err == nil:
		return account, true, nil
	case caisson.KindOf(err) == caisson.NotFound:
		return "", false, nil
	}
	return "", false, caisson.Wrap(err, caisson.Unavailable, "the account of the calls cannot be looked up at present; try again in a moment")
}

// kernelBootID returns the random id that the kernel generates at boot.
func kernelBootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// journalPath returns the path of a journal in the data directory.
func journalPath(journal caisson.ID) string { return journalDir + "/" + string(journal) + journalExt }

// Begin creates a journal for a process that runs a [Meter]. f is open for appending only. The caller passes f to that process
// only, and closes its own descriptor. The journal cannot be finished as long as a process has it open.
func (b *Book) Begin(ctx context.Context) (journal caisson.ID, f *os.File, err error) {
	boot, err := b.bootID()
	if err != nil {
		return "", nil, err
	}
	journal = caisson.NewID(caisson.JournalPrefix)
	f, err = b.dir.OpenFile(journalPath(journal), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), b.dir.Remove(journalPath(journal)))
			f = nil
		}
	}()
	// The lock belongs to the open file, not to a process. It is released when the last process that can write to the journal has
	// closed the file.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return "", f, err
	}
	if _, err := f.Write(appendHeader(nil, header{journal, boot})); err != nil {
		return "", f, err
	}
	// Sync the header, which holds the boot id: it must survive the end of this boot.
	if err := errors.Join(f.Sync(), b.syncDir()); err != nil {
		return "", f, err
	}
	if _, err := b.reader(ctx, journal); err != nil {
		return "", f, err
	}
	return journal, f, nil
}

// syncDir makes the entries of the directory of journals durable.
func (b *Book) syncDir() error {
	d, err := b.dir.Open(journalDir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// reader returns the reader of a journal. It opens the journal if that is not open yet.
func (b *Book) reader(ctx context.Context, journal caisson.ID) (*reader, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.journals[journal]; r != nil {
		return r, nil
	}
	f, err := b.dir.Open(journalPath(journal))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, caisson.Errorf(caisson.NotFound, "there is no journal %s", journal)
	}
	if err != nil {
		return nil, err
	}
	done, err := b.store.Offset(ctx, journal)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r := &reader{
		f: f, rows: rowStore{store: b.store, journal: journal, log: b.log}, owners: b.owners, now: b.now, log: b.log,
		ingested: done, openCalls: map[caisson.ID]openCall{},
	}
	b.journals[journal] = r
	return r, nil
}

// openReaders returns the readers of all journals that are not finished.
func (b *Book) openReaders() []*reader {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.journals))
}

// Ingest reads all journals into the store. When it returns, the store has every call that was settled before Ingest was called.
func (b *Book) Ingest(ctx context.Context) error {
	var errs []error
	for _, r := range b.openReaders() {
		errs = append(errs, r.ingest(ctx))
	}
	return errors.Join(errs...)
}

// InFlight returns the number of calls of a run, in all of its attempts, that have begun and are not in the store, and their
// maximum cost.
func (b *Book) InFlight(ctx context.Context, account, run string) (calls int64, most caisson.USD, err error) {
	if err := b.Ingest(ctx); err != nil {
		return 0, 0, err
	}
	for _, r := range b.openReaders() {
		n, cost := r.inFlight(account, run)
		calls += n
		most = caisson.Amount{USD: most}.Plus(caisson.Amount{USD: cost}).USD
	}
	return calls, most, nil
}

// ingestFor reads all journals into the store, but returns only the error of one journal. Errors of other journals do not matter
// to the caller: calls that are not in the store yet are covered by leases, which the store counts as a part of the spending.
func (b *Book) ingestFor(ctx context.Context, journal caisson.ID) error {
	var err error
	for _, r := range b.openReaders() {
		if e := r.ingest(ctx); r.rows.journal == journal {
			err = e
		}
	}
	return err
}

// Run ingests journals as they grow, until ctx is done, and then once more.
func (b *Book) Run(ctx context.Context) error {
	tick := time.NewTicker(ingestInterval)
	defer tick.Stop()
	for failing := false; ; {
		select {
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockWait)
			defer cancel()
			return b.Ingest(ctx)
		case <-tick.C:
		}
		err := b.Ingest(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			b.log.ErrorContext(ctx, "journals cannot be read into the store", "err", err) // logged once, not at each retry
		}
		failing = err != nil
	}
}

// Finish closes a journal to which no process writes any more. Calls that began and were not settled become rows with their
// maximum cost, and the unspent leases of the meter that wrote the journal are returned. Returns Conflict if a process still has
// the journal open. Finish is idempotent.
func (b *Book) Finish(ctx context.Context, journal caisson.ID) error {
	r, err := b.reader(ctx, journal)
	if caisson.KindOf(err) == caisson.NotFound {
		return b.store.Close(ctx, journal, true) // true: the file is missing, so all leases count as spent
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if err := r.finish(ctx, b.bootID); err != nil {
		return err
	}
	return b.removeJournal(r)
}

// Recover finishes the journals of earlier daemons. A journal that cannot be read does not prevent the start of the daemon: it is
// renamed, and the leases of the meter that wrote it count as spent. A journal to which a process still writes is read as usual,
// and finished at the next start. Recover returns errors of the store, of Owner, and of reading the directory of journals.
func (b *Book) Recover(ctx context.Context) error {
	files, err := fs.ReadDir(b.dir.FS(), journalDir)
	if err != nil {
		return err
	}
	left, err := b.store.Open(ctx)
	if err != nil {
		return err
	}
	for _, f := range files {
		if strings.HasSuffix(f.Name(), damagedExt) {
			continue
		}
		name, ok := strings.CutSuffix(f.Name(), journalExt)
		id, err := caisson.ParseID(caisson.JournalPrefix, name)
		if !ok || err != nil {
			b.log.WarnContext(ctx, "a file among the journals is not ours; it is left alone", "name", f.Name())
			continue
		}
		left = append(left, id)
	}
	var errs []error
	for _, id := range left {
		b.mu.Lock()
		_, ours := b.journals[id]
		b.mu.Unlock()
		if !ours {
			errs = append(errs, b.recover(ctx, id))
		}
	}
	return errors.Join(errs...)
}

// recover finishes a journal of an earlier daemon. If the journal cannot be read, recover closes it in the store and renames it.
func (b *Book) recover(ctx context.Context, id caisson.ID) error {
	err := b.Finish(ctx, id)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errLocked):
		b.log.ErrorContext(ctx, "a process of an earlier daemon still writes to a journal; it is finished at the next start", "journal", id, "err", err)
		return nil
	case ctx.Err() != nil || storeUnavailable(err):
		return err
	}
	b.log.ErrorContext(ctx, "a journal cannot be read and is set aside; what its gateway held of budgets counts as spent",
		"journal", id, "file", journalPath(id)+damagedExt, "err", err)
	b.mu.Lock()
	r := b.journals[id]
	delete(b.journals, id)
	b.mu.Unlock()
	if r != nil {
		_ = r.f.Close() // The file was only read, so an error has no effect.
	}
	// Update the store before the file is renamed: if the update fails, the next start tries again.
	if err := b.store.Close(ctx, id, true); err != nil {
		return err
	}
	if err := b.dir.Rename(journalPath(id), journalPath(id)+damagedExt); err != nil {
		b.log.ErrorContext(ctx, "a damaged journal cannot be renamed; the next start tries again", "journal", id, "err", err)
	}
	return nil
}

// storeUnavailable reports whether err means that the store cannot be written at present.
func storeUnavailable(err error) bool {
	kind := caisson.KindOf(err)
	return kind == caisson.Exhausted || kind == caisson.Unavailable
}

// removeJournal deletes a journal that has been closed in the store. The caller must hold r.mu.
func (b *Book) removeJournal(r *reader) error {
	b.mu.Lock()
	delete(b.journals, r.rows.journal)
	b.mu.Unlock()
	return errors.Join(r.f.Close(), b.dir.Remove(journalPath(r.rows.journal)))
}
