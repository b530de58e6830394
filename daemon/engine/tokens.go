package engine

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"time"

	"github.com/caisson-dev/caisson"
)

// Tokens implements [caisson.Tokens].
type Tokens struct {
	store  caisson.Store
	events caisson.Publisher
}

// Tokens returns the service that manages tokens.
func (e *Engine) Tokens() *Tokens {
	return &Tokens{e.data.store, e.events}
}

var _ caisson.Tokens = (*Tokens)(nil)

// tokenPrefix makes a leaked token recognisable to scanners.
const tokenPrefix = "caisson_"

// CreateToken implements [caisson.Tokens].
func (t *Tokens) CreateToken(ctx context.Context, account, name string, ttl time.Duration) (*caisson.Token, caisson.Secret, error) {
	if err := caisson.LocalOnly(ctx); err != nil {
		return nil, caisson.Secret{}, err
	}
	if len(name) > 100 {
		return nil, caisson.Secret{}, caisson.Invalidf("name", "is longer than 100 bytes")
	}
	if ttl < 0 {
		return nil, caisson.Secret{}, caisson.Invalidf("ttl", "is negative")
	}
	if account == "" {
		caller, err := caisson.CallerOf(ctx)
		if err != nil {
			return nil, caisson.Secret{}, err
		}
		account = caller.Account
	}
	if _, err := t.store.Accounts().Ensure(ctx, account); err != nil {
		return nil, caisson.Secret{}, err
	}
	// 26 characters of base32: 130 bits.
	secret := tokenPrefix + rand.Text()
	token := &caisson.Token{ID: caisson.NewID(caisson.TokenPrefix), Account: account, Name: name, CreatedAt: time.Now().UTC()}
	if ttl > 0 {
		end := token.CreatedAt.Add(ttl)
		token.ExpiresAt = &end
	}
	if err := t.store.Tokens().Insert(ctx, token, sha256.Sum256([]byte(secret))); err != nil {
		return nil, caisson.Secret{}, err
	}
	t.events.Publish(ctx, account, "token.created", string(token.ID), map[string]string{"name": name})
	return token, caisson.NewSecret(secret), nil
}

// ListTokens implements [caisson.Tokens].
func (t *Tokens) ListTokens(ctx context.Context) ([]*caisson.Token, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	return t.store.Tokens().List(ctx, caisson.In(caller.Account))
}

// RemoveToken implements [caisson.Tokens].
func (t *Tokens) RemoveToken(ctx context.Context, id caisson.ID) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	if err := t.store.Tokens().Delete(ctx, caisson.In(caller.Account), id); err != nil {
		return err
	}
	t.events.Publish(ctx, caller.Account, "token.removed", string(id), nil)
	return nil
}

// lastUsePrecision is the precision of the time of a token's last use. Each update of it is a write to the store.
const lastUsePrecision = time.Minute

// FindToken returns the unexpired token whose secret has the given SHA-256 hash.
func (t *Tokens) FindToken(ctx context.Context, hash [32]byte) (*caisson.Token, error) {
	now := time.Now()
	token, err := t.store.Tokens().Find(ctx, hash, now)
	if err != nil {
		return nil, err
	}
	if token.LastUsedAt == nil || now.Sub(*token.LastUsedAt) > lastUsePrecision {
		err = t.store.Tokens().Used(ctx, token.ID, now)
	}
	return token, err
}
