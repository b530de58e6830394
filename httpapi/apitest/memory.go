package apitest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi"
)

// Memory holds the state of cores. All of it is guarded by mu.
type Memory struct {
	mu          sync.Mutex
	changed     chan struct{} // closed and replaced at every event
	sandboxes   []*box
	snapshots   []*shot
	templates   map[string]*caisson.Template // by account and name
	images      map[string]*caisson.Image    // by account and reference
	events      []caisson.Event
	tokens      map[[32]byte]*caisson.Token
	answers     map[string]*answer
	credentials map[string]*kept           // by account and name
	budgets     map[string]*caisson.Budget // by key
	prices      []caisson.ListedPrice
	gatewayRuns map[string]*caisson.GatewayRun // by id
	agents      map[string]*caisson.Agent      // by account and id
	runs        []*task
	sessions    []*caisson.Session
	spaces      []*space
	receipts    []*receipt
	repos       map[string]*caisson.Repo // by account and name
	deliveries  []*caisson.Delivery
	volumes     []*volume
	calls       []caisson.Call
	creates     int
	pulled      caisson.PullRequest
	live        int // processes that have not ended
}

type box struct {
	caisson.Sandbox
	files map[string]*node
	procs map[int]*proc
	watch []*watcher
}

type shot struct {
	caisson.Snapshot
	files map[string]*node
}

// NewMemory returns empty cores.
func NewMemory() *Memory {
	return &Memory{
		changed: make(chan struct{}), templates: map[string]*caisson.Template{}, images: map[string]*caisson.Image{},
		tokens: map[[32]byte]*caisson.Token{}, answers: map[string]*answer{}, credentials: map[string]*kept{},
		budgets: map[string]*caisson.Budget{}, gatewayRuns: map[string]*caisson.GatewayRun{},
		agents: map[string]*caisson.Agent{}, repos: map[string]*caisson.Repo{},
	}
}

// Cores returns the cores.
func (m *Memory) Cores() Cores {
	return Cores{Config: httpapi.Config{
		Sandboxes: sandboxCore{m}, Processes: processCore{m}, Snapshots: snapshotCore{m}, Templates: templateCore{m}, Images: imageCore{m},
		Files: fileCore{m}, Events: eventCore{m}, Tokens: tokenCore{m}, Policies: policyCore{m}, Credentials: credentialCore{m},
		Audit: auditCore{m}, Ledger: ledgerCore{m}, Models: modelCore{m}, GatewayRuns: gatewayRunCore{m}, Daemon: daemonCore{m},
		Agents: agentCore{m}, Runs: runCore{m}, Workspaces: spaceCore{m}, Repos: repoCore{m}, Volumes: volumeCore{m},
		Answers: m.Answers(), FindToken: m.FindToken,
	}, Secrets: m, Charge: m.charge}
}

// Answers returns the store of answers.
func (m *Memory) Answers() caisson.AnswerStore { return answerStore{m} }

// Creates returns how many sandboxes were ever made.
func (m *Memory) Creates() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.creates
}

// Live returns how many processes run.
func (m *Memory) Live() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live
}

// Pulled returns the last request for an image, without its source.
func (m *Memory) Pulled() caisson.PullRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pulled
}

// rootfs is what must not be seen in any answer.
func rootfs() caisson.Rootfs {
	return caisson.Rootfs{Digest: "sha256:hidden", Layers: []string{"/var/lib/caisson/hidden"}}
}

// event records what happened. It needs mu.
func (m *Memory) event(account, kind, subject string) {
	m.events = append(m.events, caisson.Event{
		Seq: int64(len(m.events) + 1), At: time.Now().UTC(), Account: account, Type: kind, Subject: subject,
	})
	m.notify()
}

// notify wakes everybody who waits for events. It needs mu.
func (m *Memory) notify() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// find returns the caller's sandbox. It needs mu.
func (m *Memory) find(ctx context.Context, ref string) (*box, error) {
	c, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	for _, b := range m.sandboxes {
		if b.Account == c.Account && ref != "" && (string(b.ID) == ref || b.Name == ref) {
			return b, nil
		}
	}
	return nil, caisson.Errorf(caisson.NotFound, "there is no sandbox %.40q", ref)
}

func (m *Memory) use(ctx context.Context, ref string, v caisson.Verb) (*box, error) {
	b, err := m.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return b, b.State.Allow(v)
}

// page cuts a listing down to what f chooses.
func page[T any](all []T, f caisson.Filter, id func(T) caisson.ID, match func(T) bool) ([]T, bool) {
	if f.After != "" {
		i := slices.IndexFunc(all, func(v T) bool { return id(v) == f.After })
		all = all[i+1:]
	}
	limit := f.Limit
	if limit == 0 {
		limit = 100
	}
	var out []T
	for _, v := range all {
		if !match(v) {
			continue
		}
		if len(out) == limit {
			return out, true
		}
		out = append(out, v)
	}
	return out, false
}

func labelsMatch(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}

type tokenCore struct{ m *Memory }

func (c tokenCore) CreateToken(ctx context.Context, account, name string, ttl time.Duration) (*caisson.Token, caisson.Secret, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, caisson.Secret{}, err
	}
	if !caller.Local {
		return nil, caisson.Secret{}, caisson.Errorf(caisson.Denied, "only local callers make tokens")
	}
	secret := rand.Text()
	t := &caisson.Token{ID: caisson.NewID(caisson.TokenPrefix), Account: account, Name: name, CreatedAt: time.Now().UTC()}
	if ttl > 0 {
		end := t.CreatedAt.Add(ttl)
		t.ExpiresAt = &end
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.m.tokens[sha256.Sum256([]byte(secret))] = t
	return t, caisson.NewSecret(secret), nil
}

func (c tokenCore) ListTokens(ctx context.Context) ([]*caisson.Token, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	var out []*caisson.Token
	for _, t := range c.m.tokens {
		if t.Account == caller.Account {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b *caisson.Token) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return out, nil
}

func (c tokenCore) RemoveToken(ctx context.Context, id caisson.ID) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for h, t := range c.m.tokens {
		if t.ID == id && t.Account == caller.Account {
			delete(c.m.tokens, h)
			return nil
		}
	}
	return caisson.Errorf(caisson.NotFound, "there is no token %s", id)
}

// FindToken returns the token whose secret has this hash.
func (m *Memory) FindToken(_ context.Context, hash [32]byte) (*caisson.Token, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, ok := m.tokens[hash]
	if !ok || t.ExpiresAt != nil && t.ExpiresAt.Before(time.Now()) {
		return nil, caisson.Errorf(caisson.Unauthed, "the token is not known")
	}
	return t, nil
}

type answer struct {
	fingerprint [32]byte
	body        []byte
}

type answerStore struct{ m *Memory }

func (s answerStore) Begin(_ context.Context, account, key string, fingerprint [32]byte, _ time.Time) ([]byte, error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	a, ok := s.m.answers[account+"/"+key]
	switch {
	case !ok:
		s.m.answers[account+"/"+key] = &answer{fingerprint: fingerprint}
		return nil, nil
	case a.fingerprint != fingerprint:
		return nil, caisson.Errorf(caisson.Invalid, "the key was used for another request")
	case a.body == nil:
		return nil, caisson.Errorf(caisson.Conflict, "the request is still being worked on")
	}
	return a.body, nil
}

func (s answerStore) Finish(_ context.Context, account, key string, body []byte) error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if body == nil {
		delete(s.m.answers, account+"/"+key)
	} else {
		s.m.answers[account+"/"+key].body = body
	}
	return nil
}

func (s answerStore) Trim(context.Context, time.Time) error { return nil }

type eventCore struct{ m *Memory }

func (c eventCore) Watch(ctx context.Context, subject string, after int64) (<-chan caisson.Event, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	out := make(chan caisson.Event)
	go func() {
		defer close(out)
		for {
			c.m.mu.Lock()
			changed := c.m.changed
			events := slices.Clone(c.m.events)
			c.m.mu.Unlock()
			for _, e := range events {
				if e.Seq <= after || e.Account != caller.Account || subject != "" && e.Subject != subject {
					continue
				}
				select {
				case out <- e:
					after = e.Seq
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

type daemonCore struct{ m *Memory }

func (daemonCore) Info(context.Context) (*caisson.Info, error) {
	return &caisson.Info{Version: "1.0", Build: "test", Node: "here", Runtime: caisson.Capabilities{Name: "memory"}}, nil
}

func (c daemonCore) DiskUsage(context.Context) (*caisson.DiskUsage, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	return &caisson.DiskUsage{Usages: []caisson.Usage{{Kind: "sandboxes", Count: len(c.m.sandboxes)}}, Free: 1, Total: 2}, nil
}

func (daemonCore) CollectGarbage(context.Context) ([]caisson.Garbage, error) { return nil, nil }

func (daemonCore) Examine(context.Context) ([]caisson.Check, error) {
	return []caisson.Check{{Name: "memory", Status: "ok", Detail: "there is some"}}, nil
}
