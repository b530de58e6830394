// Package credential manages secrets: it encrypts their values with age before they are stored, with a key that is kept outside
// the store, and decrypts them for the drivers that use them.
package credential

import (
	"context"
	"crypto/subtle"
	"log/slog"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// MaxValue is the maximum size of a credential's value in bytes.
const MaxValue = 64 << 10

// Config configures a Vault.
type Config struct {
	Store caisson.CredentialStore // store of the encrypted credentials; required
	Key   KeySource               // source of the key that encrypts credentials; required
	Now   func() time.Time        // returns the current time; nil means time.Now
	Log   *slog.Logger            // nil means that nothing is logged
	// Check, unless nil, is called before a value is stored. It returns an Invalid error if the value does not suit the
	// use of the credential, such as a key that is too short.
	Check func(account, name string, value caisson.Secret) error
	// Changed, unless nil, is called after a credential was set, rotated or removed, before that operation returns.
	Changed func(ctx context.Context, account, name string)
	// Events, unless nil, receives an event after each change: "credential.set", ".rotated" or ".removed".
	Events caisson.Publisher
}

// A Vault manages credentials. It is safe for concurrent use.
type Vault struct {
	cfg Config   // the settings of the vault
	key *keyring // loads and caches the key
}

var (
	_ caisson.Credentials = (*Vault)(nil)
	_ caisson.Secrets     = (*Vault)(nil)
)

// New returns a Vault. It does not load the key.
func New(cfg Config) (*Vault, error) {
	if cfg.Store == nil {
		return nil, caisson.Errorf(caisson.Internal, "credentials need a store")
	}
	if err := cfg.Key.validate(); err != nil {
		return nil, err
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = cfg.Log.With("component", "credential")
	return &Vault{cfg: cfg, key: newKeyring(cfg.Key, cfg.Store)}, nil
}

// SetCredential implements [caisson.Credentials].
func (v *Vault) SetCredential(ctx context.Context, name string, value caisson.Secret) (*caisson.Credential, error) {
	caller, sealed, err := v.prepare(ctx, name, value)
	if err != nil {
		return nil, err
	}
	list, err := v.cfg.Store.List(ctx, caisson.In(caller.Account))
	if err != nil {
		return nil, err
	}
	if len(list) >= maxCredentials {
		return nil, caisson.Errorf(caisson.Exhausted, "the account has %d credentials, which is the maximum; remove some", len(list))
	}
	c := &caisson.Credential{Name: name, Account: caller.Account, Kind: Kind(name), CreatedAt: v.cfg.Now().UTC()}
	if err := v.cfg.Store.Insert(ctx, c, sealed); err != nil {
		return nil, err
	}
	v.notify(ctx, caller.Account, name, "credential.set")
	return c, nil
}

// maxCredentials is the maximum number of credentials of an account. Concurrent requests may exceed it by a few.
const maxCredentials = 1000

// RotateCredential implements [caisson.Credentials].
func (v *Vault) RotateCredential(ctx context.Context, name string, value caisson.Secret) (*caisson.Credential, error) {
	caller, sealed, err := v.prepare(ctx, name, value)
	if err != nil {
		return nil, err
	}
	c, err := v.cfg.Store.Replace(ctx, caisson.In(caller.Account), name, sealed, v.cfg.Now().UTC())
	if err != nil {
		return nil, err
	}
	v.notify(ctx, caller.Account, name, "credential.rotated")
	return c, nil
}

// prepare validates the name and the value of a credential, and returns the caller in ctx and the encrypted value.
func (v *Vault) prepare(ctx context.Context, name string, value caisson.Secret) (caisson.Caller, []byte, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return caller, nil, err
	}
	if err := CheckName(name); err != nil {
		return caller, nil, err
	}
	if err := CheckValue(value); err != nil {
		return caller, nil, err
	}
	if v.cfg.Check != nil {
		if err := v.cfg.Check(caller.Account, name, value); err != nil {
			return caller, nil, err
		}
	}
	id, err := v.key.encryptionKey(ctx)
	if err != nil {
		return caller, nil, err
	}
	sealed, err := seal(id, caller.Account, name, value)
	return caller, sealed, err
}

// MatchCredential implements [caisson.Credentials].
func (v *Vault) MatchCredential(ctx context.Context, name string, value caisson.Secret) (bool, error) {
	if err := caisson.LocalOnly(ctx); err != nil {
		return false, err
	}
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return false, err
	}
	stored, err := v.Secret(ctx, caller.Account, name)
	if err != nil {
		return false, err
	}
	return subtle.ConstantTimeCompare([]byte(stored.Reveal()), []byte(value.Reveal())) == 1, nil
}

// ListCredentials implements [caisson.Credentials].
func (v *Vault) ListCredentials(ctx context.Context) ([]*caisson.Credential, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	return v.cfg.Store.List(ctx, caisson.In(caller.Account))
}

// RemoveCredential implements [caisson.Credentials].
func (v *Vault) RemoveCredential(ctx context.Context, name string) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	if err := v.cfg.Store.Delete(ctx, caisson.In(caller.Account), name); err != nil {
		return err
	}
	v.notify(ctx, caller.Account, name, "credential.removed")
	return nil
}

// Secret implements [caisson.Secrets].
func (v *Vault) Secret(ctx context.Context, account, name string) (caisson.Secret, error) {
	if account == "" {
		return caisson.Secret{}, caisson.Errorf(caisson.Unauthed, "a credential belongs to an account, and the request has none")
	}
	c, sealed, err := v.cfg.Store.Get(ctx, caisson.In(account), name)
	if err != nil {
		return caisson.Secret{}, err
	}
	id, err := v.key.decryptionKey(ctx)
	if err != nil {
		return caisson.Secret{}, err
	}
	return open(id, account, c.Name, sealed)
}

// notify publishes the event that a credential was set, rotated or removed, and calls Config.Changed.
func (v *Vault) notify(ctx context.Context, account, name, event string) {
	if v.cfg.Events != nil {
		v.cfg.Events.Publish(ctx, account, event, name, nil)
	}
	if v.cfg.Changed != nil {
		v.cfg.Changed(ctx, account, name)
	}
}

// validName matches valid names of credentials.
var validName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,63}$`)

// valuePrefixes are the prefixes of well-known keys. A name with one of them is probably a value entered as the name.
var valuePrefixes = []string{
	"sk-", "sk_", "pk_", "rk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "xoxa-", "xapp-",
	"AIza", "AKIA", "ASIA", "ya29.", "hf_", "gsk_", "npm_", "AGE-SECRET-KEY-", "eyJ",
}

// CheckName returns an Invalid error if name is not valid. The error does not include a name that looks like a value.
func CheckName(name string) error {
	for _, p := range valuePrefixes {
		if strings.HasPrefix(name, p) {
			return caisson.Invalidf("name", "this looks like the value of a credential, not like a name such as ANTHROPIC_API_KEY; if it is one, rotate it at its provider, because it may have been disclosed")
		}
	}
	switch {
	case validName.MatchString(name):
		return nil
	case len(name) > 64:
		return caisson.Invalidf("name", "is longer than 64 characters")
	}
	return caisson.Invalidf("name", "a name has letters, digits, '_', '-' and '.', and begins with a letter, for example ANTHROPIC_API_KEY")
}

// CheckValue returns an Invalid error if value is not valid. The error does not include the value.
func CheckValue(value caisson.Secret) error {
	s := value.Reveal()
	switch {
	case s == "":
		return caisson.Invalidf("value", "is empty")
	case len(s) > MaxValue:
		return caisson.Invalidf("value", "is longer than 64 KiB")
	case strings.ContainsRune(s, 0):
		return caisson.Invalidf("value", "contains a zero byte")
	case !utf8.ValidString(s):
		return caisson.Invalidf("value", "is not text in UTF-8; encode it, for example as base64")
	case s == value.String():
		return caisson.Invalidf("value", "is what is printed in place of a secret, not the secret")
	}
	return nil
}
