package apitest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/credential"
)

// kept is a credential with its value, which in memory needs no encryption.
type kept struct {
	caisson.Credential
	value caisson.Secret
}

type credentialCore struct{ m *Memory }

func (c credentialCore) SetCredential(ctx context.Context, name string, value caisson.Secret) (*caisson.Credential, error) {
	return c.put(ctx, name, value, false)
}

func (c credentialCore) RotateCredential(ctx context.Context, name string, value caisson.Secret) (*caisson.Credential, error) {
	return c.put(ctx, name, value, true)
}

func (c credentialCore) put(ctx context.Context, name string, value caisson.Secret, rotate bool) (*caisson.Credential, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := credential.CheckName(name); err != nil {
		return nil, err
	}
	if err := credential.CheckValue(value); err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	key, now := caller.Account+"/"+name, time.Now().UTC()
	k := c.m.credentials[key]
	switch {
	case rotate && k == nil:
		return nil, caisson.Errorf(caisson.NotFound, "there is no credential %s", name)
	case rotate:
		k.value, k.RotatedAt = value, &now
	case k != nil:
		return nil, caisson.Errorf(caisson.Conflict, "a credential named %s exists already", name)
	default:
		k = &kept{caisson.Credential{Name: name, Account: caller.Account, Kind: credential.Kind(name), CreatedAt: now}, value}
		c.m.credentials[key] = k
	}
	c.m.event(caller.Account, "credential.set", name)
	out := k.Credential
	return &out, nil
}

func (c credentialCore) ListCredentials(ctx context.Context) ([]*caisson.Credential, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	var out []*caisson.Credential
	for _, k := range c.m.credentials {
		if k.Account == caller.Account {
			v := k.Credential
			out = append(out, &v)
		}
	}
	slices.SortFunc(out, func(a, b *caisson.Credential) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (c credentialCore) RemoveCredential(ctx context.Context, name string) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	key := caller.Account + "/" + name
	if c.m.credentials[key] == nil {
		return caisson.Errorf(caisson.NotFound, "there is no credential %.40q", name)
	}
	delete(c.m.credentials, key)
	c.m.event(caller.Account, "credential.removed", name)
	return nil
}

// Secret implements [caisson.Secrets].
func (m *Memory) Secret(_ context.Context, account, name string) (caisson.Secret, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.credentials[account+"/"+name]
	if k == nil {
		return caisson.Secret{}, caisson.Errorf(caisson.NotFound, "there is no credential %.40q", name)
	}
	return k.value, nil
}

// auditCore chains events with hashes that have no key: in memory nobody else writes.
type auditCore struct{ m *Memory }

func (c auditCore) VerifyAudit(ctx context.Context, head string) (*caisson.AuditReport, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if !caller.Local {
		return nil, caisson.Errorf(caisson.Denied, "only local callers verify the record")
	}
	if _, _, ok := strings.Cut(head, ":"); head != "" && !ok {
		return nil, caisson.Invalidf("head", "%.100q is not a head", head)
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	var sum [32]byte
	r := &caisson.AuditReport{Head: fmt.Sprintf("0:%x", sum)}
	found := head == "" || head == r.Head
	for _, e := range c.m.events {
		doc, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		sum = sha256.Sum256(append(sum[:], doc...))
		r.Events, r.First, r.Last, r.Head = r.Events+1, 1, e.Seq, fmt.Sprintf("%d:%x", e.Seq, sum)
		found = found || head == r.Head
	}
	if !found {
		r.Problem = "the record was replaced"
	}
	return r, nil
}
