// Package sqlite implements [caisson.Store] in one SQLite file with one writer and several readers. Writes are
// acknowledged only after they are on disk.
//
// Objects are JSON documents beside the few columns that queries need, so a new field of an object needs no migration. A writing
// transaction costs one fdatasync; writers are queued in this process, not in SQLite. Readers do not wait for writers.
package sqlite

import (
	"context"
	"embed"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

//go:embed migration/*.sql
var migrations embed.FS // SQL scripts, each of which migrates the schema to the next version

// Config configures a store.
type Config struct {
	// Path of the database file; required. The file is created if it does not exist; its directory must exist. SQLite
	// keeps two more files beside it (-wal, -shm) while it is open. The file system must be local.
	Path string
	// Log receives messages for operators, such as upgrades of the schema; nil discards them.
	Log *slog.Logger
	// AuditKey returns the key that authenticates the record of events, 32 bytes, and reports whether the key was just
	// created; required. Open calls it once, also for an existing database. The key permits forging the record.
	AuditKey func() (key caisson.Secret, made bool, err error)
	// Now is the clock for times that the store itself sets; nil means time.Now.
	Now func() time.Time
}

// Store implements [caisson.Store]. Only one process may open a database at a time. The owner of the data directory
// must ensure this; the store does not lock the database.
type Store struct {
	db          *db
	sandboxes   *table[caisson.Sandbox]
	snapshots   *table[caisson.Snapshot]
	templates   *table[caisson.Template]
	images      *table[caisson.Image]
	accounts    *accounts
	tokens      *tokens
	events      *events
	answers     *answers
	credentials *credentials
	ledger      *ledger
	gatewayRuns *gatewayRuns
	agents      *table[caisson.Agent]
	volumes     *table[caisson.Volume]
	routes      *table[caisson.Route]
	runs        *runs
	sessions    *table[caisson.Session]
	workspaces  workspaces
	repos       *table[caisson.Repo]
	deliveries  deliveries
	close       func() error // Closes db on the first call.
}

var _ caisson.Store = (*Store)(nil)

// Open opens the store, creates it if it does not exist, and brings its schema up to date. Existing data is never discarded: a
// file that is damaged, is not Caisson's or comes from a newer Caisson is left unchanged, and Open returns a Conflict error.
func Open(ctx context.Context, c Config) (*Store, error) {
	sub, err := fs.Sub(migrations, "migration")
	if err != nil {
		return nil, err
	}
	return open(ctx, c, sub)
}

// open implements Open with the schema migrations of the given file system.
func open(ctx context.Context, c Config, migrations fs.FS) (_ *Store, err error) {
	if c.Path == "" {
		return nil, caisson.Invalidf("path", "the store needs the path of its database file")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = c.Log.With("component", "sqlite")
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.AuditKey == nil {
		return nil, caisson.Invalidf("auditKey", "the store needs the key of its record of events")
	}
	key, made, err := c.AuditKey()
	if err != nil {
		return nil, err
	}
	if len(key.Reveal()) != keySize {
		return nil, caisson.Invalidf("auditKey", "the key of the audit log must have %d bytes", keySize)
	}
	events := chain{[]byte(key.Reveal())}
	d, err := openDB(ctx, c.Path, migrations, events.startChain(made), c.Log)
	if err != nil {
		return nil, err
	}
	s := &Store{db: d, close: sync.OnceValue(d.close)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := s.prepare(ctx, c, events); err != nil {
		return nil, err
	}
	if err := s.events.checkHead(ctx); err != nil {
		return nil, err
	}
	if _, err := s.accounts.Ensure(ctx, caisson.LocalAccount); err != nil {
		return nil, err
	}
	return s, nil
}

// prepare compiles all statements with a fixed text, once for all uses, because compiling takes longer than running.
func (s *Store) prepare(ctx context.Context, c Config, events chain) error {
	p := &preparer{ctx: ctx, db: s.db}
	s.sandboxes = newTable(p, objectKind[caisson.Sandbox]{noun: "sandbox", columns: func(b *caisson.Sandbox) objectColumns {
		return objectColumns{key: string(b.ID), account: b.Account, name: b.Name, state: string(b.State)}
	}})
	s.snapshots = newTable(p, objectKind[caisson.Snapshot]{noun: "snapshot", columns: func(o *caisson.Snapshot) objectColumns {
		return objectColumns{key: string(o.ID), account: o.Account, name: o.Name}
	}})
	s.templates = newTable(p, namedKind("template", func(t *caisson.Template) (account, name string) { return t.Account, t.Name }))
	s.images = newTable(p, namedKind("image", func(i *caisson.Image) (account, name string) { return i.Account, i.Reference }))
	s.accounts = newAccounts(p, c.Now)
	s.tokens = newTokens(p)
	s.events = newEvents(p, events, c.Log)
	s.answers = newAnswers(p)
	s.credentials = newCredentials(p)
	s.ledger = newLedger(p, c.Now)
	s.gatewayRuns = newGatewayRuns(p)
	s.agents = newTable(p, namedKind("agent", func(a *caisson.Agent) (account, name string) { return a.Account, a.ID }))
	s.volumes = newTable(p, objectKind[caisson.Volume]{noun: "volume", columns: func(v *caisson.Volume) objectColumns {
		return objectColumns{key: string(v.ID), account: v.Account, name: v.Name}
	}})
	s.routes = newTable(p, objectKind[caisson.Route]{noun: "route", columns: func(r *caisson.Route) objectColumns {
		return objectColumns{key: string(r.ID), account: r.Account, name: r.Name}
	}})
	s.runs = newRuns(p, c.Now)
	s.sessions = newTable(p, objectKind[caisson.Session]{noun: "session", columns: func(o *caisson.Session) objectColumns {
		return objectColumns{key: string(o.ID), account: o.Account, name: caisson.SessionName(o.Agent, o.User, o.Key)}
	}})
	s.workspaces = newWorkspaces(p)
	s.repos = newTable(p, namedKind("repo", func(r *caisson.Repo) (account, name string) { return r.Account, r.Name }))
	s.deliveries = newDeliveries(p)
	return s.db.explain(p.err)
}

// Sandboxes implements [caisson.Store].
func (s *Store) Sandboxes() caisson.Table[caisson.Sandbox] { return s.sandboxes }

// Snapshots implements [caisson.Store].
func (s *Store) Snapshots() caisson.Table[caisson.Snapshot] { return s.snapshots }

// Templates implements [caisson.Store].
func (s *Store) Templates() caisson.Table[caisson.Template] { return s.templates }

// Images implements [caisson.Store].
func (s *Store) Images() caisson.Table[caisson.Image] { return s.images }

// Accounts implements [caisson.Store].
func (s *Store) Accounts() caisson.AccountStore { return s.accounts }

// Tokens implements [caisson.Store].
func (s *Store) Tokens() caisson.TokenStore { return s.tokens }

// Events implements [caisson.Store].
func (s *Store) Events() caisson.EventStore { return s.events }

// Answers implements [caisson.Store].
func (s *Store) Answers() caisson.AnswerStore { return s.answers }

// Credentials implements [caisson.Store].
func (s *Store) Credentials() caisson.CredentialStore { return s.credentials }

// Ledger implements [caisson.Store].
func (s *Store) Ledger() caisson.LedgerStore { return s.ledger }

// GatewayRuns implements [caisson.Store].
func (s *Store) GatewayRuns() caisson.GatewayRunStore { return s.gatewayRuns }

// Agents implements [caisson.Store].
func (s *Store) Agents() caisson.Table[caisson.Agent] { return s.agents }

// Volumes implements [caisson.Store].
func (s *Store) Volumes() caisson.Table[caisson.Volume] { return s.volumes }

// Routes implements [caisson.Store].
func (s *Store) Routes() caisson.Table[caisson.Route] { return s.routes }

// Runs implements [caisson.Store].
func (s *Store) Runs() caisson.RunStore { return s.runs }

// Sessions implements [caisson.Store].
func (s *Store) Sessions() caisson.Table[caisson.Session] { return s.sessions }

// Workspaces implements [caisson.Store].
func (s *Store) Workspaces() caisson.WorkspaceStore { return s.workspaces }

// Repos implements [caisson.Store].
func (s *Store) Repos() caisson.Table[caisson.Repo] { return s.repos }

// Deliveries implements [caisson.Store].
func (s *Store) Deliveries() caisson.DeliveryStore { return s.deliveries }

// Close waits for running operations, moves all data into the database file and closes it. Afterwards every method
// returns Unavailable. Close is idempotent.
func (s *Store) Close() error { return s.close() }
