package caisson

import (
	"context"
	"regexp"
	"time"
)

// LocalAccount is the default account of requests over the unix socket. It always exists.
const LocalAccount = "local"

// UIDRange is the number of host uids, and of host gids, that an account has. The guest ids 0 to 65535 are mapped to them.
const UIDRange = 65536

// accountName is the form of the names of accounts, which are parts of keys and of paths on the host.
var accountName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// ValidAccountName reports whether s has the form of an account's name. It does not check whether the account exists.
func ValidAccountName(s string) bool { return accountName.MatchString(s) }

// An Account owns objects and is charged for model calls.
type Account struct {
	Name      string    `json:"name" doc:"Unique name"`
	UIDBase   uint32    `json:"uidBase" doc:"First of the 65536 unprivileged host uids (and gids) that this account's sandboxes are mapped to; never 0"`
	CreatedAt time.Time `json:"createdAt"`
}

// A Scope restricts a store query to the objects of one account. The methods of stores require a Scope, so no caller can forget
// to name an account. The zero Scope covers no objects. Only the engine's own queries cover all accounts, with [AllAccounts].
type Scope struct {
	account string // covers the objects of this account; "" if all is set
	all     bool   // covers the objects of every account
}

// In returns the scope of one account.
func In(account string) Scope { return Scope{account: account} }

// AllAccounts returns the scope that covers the objects of every account, for the engine's own housekeeping. API servers never
// use it.
func AllAccounts() Scope { return Scope{all: true} }

// Account returns the account and false, or "" and true for [AllAccounts].
func (s Scope) Account() (account string, all bool) { return s.account, s.all }

// Covers reports whether s includes the objects of account.
func (s Scope) Covers(account string) bool { return s.all || (s.account != "" && s.account == account) }

// A Caller is the identity of an API request, or of background work of the daemon. API servers put it into the
// request's context, and the cores read it from there.
type Caller struct {
	Account string // the account that the caller acts for
	Local   bool   // the request came over the unix socket: all rights, for any account; host paths are passed as descriptors
	Token   ID     // the token that authenticated the request; "" for Local callers and background work
	work    string // description of background work of the daemon; "" for a request
	host    bool   // the host's administrator configured the background work, see HostCaller
}

// DaemonCaller returns the caller of background work of the daemon on the objects of an account. It has the rights of a
// token of the account. work describes the work. The actor of the caller's events is "local"; see [ActorOf].
func DaemonCaller(account, work string) Caller { return Caller{Account: account, work: work} }

// HostCaller is like [DaemonCaller], for work that the host's administrator has configured, such as the administrator's agents.
// It may also use host resources, see [Caller.MayUseHost], but does not have the other rights of a Local caller.
func HostCaller(account, work string) Caller {
	return Caller{Account: account, work: work, host: true}
}

// Work returns the description of the daemon's background work; "" for a request.
func (c Caller) Work() string { return c.work }

// MayUseHost reports whether host resources may be used for the caller: directories and networks of the host, registries in
// networks of the host, and higher limits than those that apply to all accounts.
func (c Caller) MayUseHost() bool { return c.Local || c.host }

// callerKey is the key of the Caller in a context.
type callerKey struct{}

// WithCaller returns a context that carries c.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller in ctx. It returns an Unauthed error if ctx has no caller: there is no default caller.
func CallerOf(ctx context.Context) (Caller, error) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	if !ok || c.Account == "" {
		return Caller{}, Errorf(Unauthed, "the request has no account")
	}
	return c, nil
}

// ScopeOf returns a Scope that covers the objects of the account of the caller in ctx, and the caller. Unauthed if there is none.
func ScopeOf(ctx context.Context) (Scope, Caller, error) {
	c, err := CallerOf(ctx)
	return In(c.Account), c, err
}

// LocalOnly returns a Denied error unless the caller in ctx is Local. Only the host's administrator may use methods that call it.
func LocalOnly(ctx context.Context) error {
	c, err := CallerOf(ctx)
	if err == nil && !c.Local {
		err = Errorf(Denied, "only the host's administrator may do this, over the unix socket")
	}
	return err
}

// A Token lets a client act as an account over TCP. Only the SHA-256 hash of its secret, or of its SSH key, is stored.
type Token struct {
	ID         ID         `json:"id"`
	Account    string     `json:"account"`
	Name       string     `json:"name" doc:"What the token is for, chosen by its maker"`
	CreatedAt  time.Time  `json:"createdAt"`
	ExpiresAt  *time.Time `json:"expiresAt,omitempty"`
	LastUsedAt *time.Time `json:"lastUsedAt,omitempty"`
	// SSHKey is empty for a token with a secret. A token of an SSH key can be used only by the owner of the private key, over SSH.
	SSHKey string `json:"sshKey,omitempty" doc:"Fingerprint of the SSH key that the token stands for; such a token has no secret"`
}

// Tokens is the service that manages tokens.
type Tokens interface {
	// CreateToken creates a token for account and returns it with its secret, which cannot be read again. Local callers
	// only (Denied otherwise); a ttl of 0 means no expiry.
	CreateToken(ctx context.Context, account, name string, ttl time.Duration) (*Token, Secret, error)
	// CreateSSHKey creates a token for an SSH key, a line of authorized_keys without options: the owner of the private key may
	// connect to the account's sandboxes over SSH. Local callers only. Conflict if this or another account has a token for the key.
	CreateSSHKey(ctx context.Context, account, name, key string, ttl time.Duration) (*Token, error)
	// ListTokens returns the tokens of the caller's account, newest first.
	ListTokens(ctx context.Context) ([]*Token, error)
	// RemoveToken revokes a token immediately. NotFound if the caller's account has no such token.
	RemoveToken(ctx context.Context, id ID) error
}
