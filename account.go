package caisson

import (
	"context"
	"time"
)

// LocalAccount is the account that the unix socket acts as unless told otherwise. It always exists.
const LocalAccount = "local"

// UIDRange is the size of an account's range of host uids and gids: guest ids 0 to 65535.
const UIDRange = 65536

// An Account is whom objects belong to and who pays.
type Account struct {
	Name      string    `json:"name" doc:"Unique name"`
	UIDBase   uint32    `json:"uidBase" doc:"First of the 65536 unprivileged host uids (and gids) that this account's sandboxes are mapped to; never 0"`
	CreatedAt time.Time `json:"createdAt"`
}

// A Scope says whose objects a store query may touch. There is no zero Scope that means "everyone": a query without an
// account does not compile, and [Everyone] is spelled out where the engine itself asks.
type Scope struct {
	account string
	all     bool
}

// In returns the scope of one account.
func In(account string) Scope { return Scope{account: account} }

// Everyone returns the scope of the engine's own housekeeping: every account's objects. Front doors never use it.
func Everyone() Scope { return Scope{all: true} }

// Account returns the account and false, or "" and true for [Everyone].
func (s Scope) Account() (account string, all bool) { return s.account, s.all }

// Covers reports whether objects of account are in s.
func (s Scope) Covers(account string) bool { return s.all || (s.account != "" && s.account == account) }

// A Caller is who makes a request, or the daemon at work of its own. Front doors put it into the request's context, cores read
// it there.
type Caller struct {
	Account string
	Local   bool   // came over the unix socket: full rights, host paths as descriptors, may act for any account
	Token   ID     // "" if Local
	work    string // what the daemon does by itself; "" for a request
	host    bool   // the work is done as the host's administrator has set it up
}

// OwnWork returns the caller of work that the daemon does by itself on the objects of an account: no more than a token of the
// account may do. work says what it is. The record of events names it as it names local callers.
func OwnWork(account, work string) Caller { return Caller{Account: account, work: work} }

// HostWork is [OwnWork] for work that the host's administrator has set up, such as agents of the host's own: what he has
// named of the host may be used for it. He himself may do more; see Local.
func HostWork(account, work string) Caller {
	return Caller{Account: account, work: work, host: true}
}

// Work returns what the daemon does by itself, "" for a request.
func (c Caller) Work() string { return c.work }

// MayUseHost reports whether what is the host's may be used for the caller: its directories and networks, registries in these,
// and limits beyond those that hold for everybody.
func (c Caller) MayUseHost() bool { return c.Local || c.host }

type callerKey struct{}

// WithCaller returns a context that carries c.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller in ctx, or an Unauthed error: there is no default caller.
func CallerOf(ctx context.Context) (Caller, error) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	if !ok || c.Account == "" {
		return Caller{}, Errorf(Unauthed, "this request carries no account")
	}
	return c, nil
}

// LocalOnly returns a Denied error for callers with a token: what follows speaks about everybody's objects.
func LocalOnly(ctx context.Context) error {
	c, err := CallerOf(ctx)
	if err == nil && !c.Local {
		err = Errorf(Denied, "only the host's administrator may do this, over the unix socket")
	}
	return err
}

// A Token lets a client act as an account over TCP. Only its SHA-256 is stored.
type Token struct {
	ID         ID         `json:"id"`
	Account    string     `json:"account"`
	Name       string     `json:"name" doc:"What the token is for, chosen by its maker"`
	CreatedAt  time.Time  `json:"createdAt"`
	ExpiresAt  *time.Time `json:"expiresAt,omitempty"`
	LastUsedAt *time.Time `json:"lastUsedAt,omitempty"`
}

// Tokens is the management of tokens.
type Tokens interface {
	// CreateToken makes a token for account and returns it with its secret, which cannot be had again.
	// Local callers only (Denied otherwise); a ttl of 0 means no expiry.
	CreateToken(ctx context.Context, account, name string, ttl time.Duration) (*Token, Secret, error)
	// ListTokens returns the tokens of the caller's account, newest first.
	ListTokens(ctx context.Context) ([]*Token, error)
	// RemoveToken makes a token useless at once. NotFound if the caller's account has no such token.
	RemoveToken(ctx context.Context, id ID) error
}
