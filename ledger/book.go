package ledger

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

const (
	journalDir  = "ledger"
	journalExt  = ".journal"
	damagedExt  = ".damaged" // after journalExt
	ingestEvery = 250 * time.Millisecond
	// lockWait is how long a writer that has ended may take to be gone.
	lockWait = 5 * time.Second
)

// BookConfig is what a [Book] is made of.
type BookConfig struct {
	// Dir is the data directory; journals are in its directory "ledger". Required, and the caller's to close.
	Dir *os.Root
	// Store holds the ledger; required.
	Store caisson.LedgerStore
	// Owner returns whose sandbox g is, or whose run if g has no sandbox, because that is on another machine; required. Nothing else in g
	// means anything. A call that claims to be of another's is dropped, as is one of nobody's, which NotFound says. After any other
	// error it is asked again, and until then nothing more is read.
	Owner func(g caisson.Guest) (account string, err error)
	// BootID returns what tells this boot of the machine from others; nil reads the kernel's.
	BootID func() (string, error)
	Now    func() time.Time // nil means time.Now
	Log    *slog.Logger     // gets one line per call, and what is wrong with journals; nil means nobody does
}

// A Book is the engine's side of the ledger. It is safe for concurrent use.
type Book struct {
	dir    *os.Root
	store  caisson.LedgerStore
	find   func(g caisson.Guest) (string, error) // BookConfig.Owner
	bootID func() (string, error)
	now    func() time.Time
	log    *slog.Logger

	mu       sync.Mutex
	journals map[caisson.ID]*reader // guarded by mu
}

// NewBook returns a book. Call Recover before the first Begin.
func NewBook(c BookConfig) (*Book, error) {
	if c.Dir == nil || c.Store == nil || c.Owner == nil {
		return nil, caisson.Errorf(caisson.Internal, "a book needs a directory, a store and a way to know sandboxes")
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
		dir: c.Dir, store: c.Store, find: c.Owner, bootID: c.BootID, now: c.Now, log: c.Log.With("component", "ledger"),
		journals: map[caisson.ID]*reader{},
	}, nil
}

// owner says whose g is; ok is false if it is nobody's. The error is Unavailable, so that nobody takes it for the journal's fault.
func (b *Book) owner(g caisson.Guest) (account string, ok bool, err error) {
	account, err = b.find(g)
	switch {
	case err == nil:
		return account, true, nil
	case caisson.KindOf(err) == caisson.NotFound:
		return "", false, nil
	}
	return "", false, caisson.Wrap(err, caisson.Unavailable, "whose calls those are cannot be looked up now; try again in a moment")
}

// kernelBootID returns the random id that the kernel has made at this boot.
func kernelBootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

func nameOf(journal caisson.ID) string { return journalDir + "/" + string(journal) + journalExt }

// Begin makes a journal for a process that will run a [Meter]. f can only be appended to; the caller gives it to that
// process, and to no other, and closes its own. As long as anybody has it open the journal cannot be finished.
func (b *Book) Begin(ctx context.Context) (journal caisson.ID, f *os.File, err error) {
	boot, err := b.bootID()
	if err != nil {
		return "", nil, err
	}
	journal = caisson.NewID(caisson.JournalPrefix)
	f, err = b.dir.OpenFile(nameOf(journal), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), b.dir.Remove(nameOf(journal)))
			f = nil
		}
	}()
	// The lock is held by the open file, whoever has it: it shows when the last writer has gone.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return "", f, err
	}
	if _, err := f.Write(appendHeader(nil, header{journal, boot})); err != nil {
		return "", f, err
	}
	// The header says which boot the journal is of, so it must survive that boot's end.
	if err := errors.Join(f.Sync(), b.syncDir()); err != nil {
		return "", f, err
	}
	if _, err := b.reader(ctx, journal); err != nil {
		return "", f, err
	}
	return journal, f, nil
}

func (b *Book) syncDir() error {
	d, err := b.dir.Open(journalDir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// reader returns the reader of a journal, opened if need be.
func (b *Book) reader(ctx context.Context, journal caisson.ID) (*reader, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.journals[journal]; r != nil {
		return r, nil
	}
	f, err := b.dir.Open(nameOf(journal))
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
	r := &reader{book: b, id: journal, f: f, known: done, begun: map[caisson.ID]begun{}}
	b.journals[journal] = r
	return r, nil
}

// open returns the readers of journals that were not finished.
func (b *Book) open() []*reader {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]*reader, 0, len(b.journals))
	for _, r := range b.journals {
		list = append(list, r)
	}
	return list
}

// Ingest reads what all journals say into the store. When it returns, the store has every call that was settled before.
func (b *Book) Ingest(ctx context.Context) error {
	var errs []error
	for _, r := range b.open() {
		errs = append(errs, r.ingest(ctx))
	}
	return errors.Join(errs...)
}

// UnderWay returns how many calls of a run, in all its attempts, have begun and are not in the store, and the most that they can cost.
func (b *Book) UnderWay(ctx context.Context, account, run string) (calls int64, most caisson.USD, err error) {
	if err := b.Ingest(ctx); err != nil {
		return 0, 0, err
	}
	for _, r := range b.open() {
		n, cost := r.underWay(account, run)
		calls += n
		most = caisson.Amount{USD: most}.Plus(caisson.Amount{USD: cost}).USD
	}
	return calls, most, nil
}

// ingestFor is Ingest for the holder of a journal: what is wrong with others' journals is not its fault, and what they hold
// of budgets counts all the same.
func (b *Book) ingestFor(ctx context.Context, journal caisson.ID) error {
	var err error
	for _, r := range b.open() {
		if e := r.ingest(ctx); r.id == journal {
			err = e
		}
	}
	return err
}

// Run ingests whenever a journal has grown, until ctx ends, and once more then.
func (b *Book) Run(ctx context.Context) error {
	tick := time.NewTicker(ingestEvery)
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
			b.log.ErrorContext(ctx, "journals cannot be read into the store", "err", err) // once, not four times a second
		}
		failing = err != nil
	}
}

// Finish closes a journal when nobody writes to it any more: calls that began and were not settled become rows with the
// most they can have taken, and what its meter held besides is free again. Conflict if a process still has it.
// Finishing what was finished is nothing.
func (b *Book) Finish(ctx context.Context, journal caisson.ID) error {
	r, err := b.reader(ctx, journal)
	if caisson.KindOf(err) == caisson.NotFound {
		return b.store.Close(ctx, journal, true) // without its file nobody knows what was spent
	}
	if err != nil {
		return err
	}
	return r.finish(ctx)
}

// Recover finishes all journals that an earlier life of the engine left. A journal that cannot be finished does not keep the
// engine from starting: it is set aside, and what its holder had of budgets counts as spent. One that a process still
// writes is read on and finished the next time. An error is the store's.
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

// recover finishes a journal or, if that cannot be, sets it aside.
func (b *Book) recover(ctx context.Context, id caisson.ID) error {
	err := b.Finish(ctx, id)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errHeld):
		b.log.ErrorContext(ctx, "a process of an earlier life still writes a journal; it is finished at the next start", "journal", id, "err", err)
		return nil
	case ctx.Err() != nil || storeFails(err):
		return err
	}
	b.log.ErrorContext(ctx, "a journal cannot be read and is set aside; what its gateway held of budgets counts as spent",
		"journal", id, "file", nameOf(id)+damagedExt, "err", err)
	b.mu.Lock()
	r := b.journals[id]
	delete(b.journals, id)
	b.mu.Unlock()
	if r != nil {
		_ = r.f.Close() // it was only read
	}
	// First the store: if that fails, the next start tries again.
	if err := b.store.Close(ctx, id, true); err != nil {
		return err
	}
	if err := b.dir.Rename(nameOf(id), nameOf(id)+damagedExt); err != nil {
		b.log.ErrorContext(ctx, "a damaged journal cannot be renamed; it will be tried again", "journal", id, "err", err)
	}
	return nil
}

// storeFails reports whether err says that the store cannot be written at present, whatever is.
func storeFails(err error) bool {
	kind := caisson.KindOf(err)
	return kind == caisson.Exhausted || kind == caisson.Unavailable
}

// forget is called when a journal is closed in the store.
func (b *Book) forget(r *reader) error {
	b.mu.Lock()
	delete(b.journals, r.id)
	b.mu.Unlock()
	return errors.Join(r.f.Close(), b.dir.Remove(nameOf(r.id)))
}
