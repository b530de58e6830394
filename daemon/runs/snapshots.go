package runs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
)

// keyOf returns a hash of parts.
func keyOf(parts ...any) (string, error) {
	data, err := json.Marshal(parts)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16]), nil
}

// snapshots finds and removes warm snapshots.
type snapshots struct {
	service  caisson.Snapshots
	services *services
	build    string // of Caisson: warm snapshots of other builds cannot be used
}

// key returns a hash of all that a warm snapshot of the agent depends on, except what is checked when it is restored.
func (s *snapshots) key(ctx context.Context, a *caisson.Agent, t *prepared) (string, error) {
	models, err := s.services.usable(ctx, a)
	if err != nil {
		return "", err
	}
	b := *a
	// Fields that concern only single runs do not change the snapshot.
	b.Status, b.CreatedAt, b.Name, b.Description, b.Policy, b.Models, b.APIs, b.SubAgents = caisson.AgentStatus{}, time.Time{}, "", "", caisson.Policy{}, nil, nil, nil
	b.Limits.Time, b.Limits.Output, b.Limits.Cost, b.Limits.Tokens, b.Limits.Calls, b.Limits.Runs = 0, 0, nil, nil, nil, nil
	return keyOf(b, models, t.name, t.key, s.build)
}

// current returns the warm snapshot that runs of the agent fork, or nil.
func (s *snapshots) current(ctx context.Context, a *caisson.Agent, t *prepared) (*caisson.Snapshot, error) {
	if !usesWarmSnapshot(a) {
		return nil, nil
	}
	key, err := s.key(ctx, a, t)
	if err != nil {
		return nil, err
	}
	list, err := s.list(ctx, a.ID)
	i := slices.IndexFunc(list, func(o *caisson.Snapshot) bool { return o.Labels[labelKey] == key && o.Memory })
	if err != nil || i < 0 {
		return nil, err
	}
	return list[i], nil
}

// list returns the warm snapshots that the caller's account has of an agent, newest first.
func (s *snapshots) list(ctx context.Context, agent string) ([]*caisson.Snapshot, error) {
	list, _, err := s.service.ListSnapshots(ctx, caisson.Filter{Labels: map[string]string{labelAgent: agent}, Limit: 1000})
	list = slices.DeleteFunc(list, func(o *caisson.Snapshot) bool { return o.Labels[labelKey] == "" })
	slices.Reverse(list)
	return list, err
}

// dropOthers removes all warm snapshots of an agent except keep.
func (s *snapshots) dropOthers(ctx context.Context, agent string, keep caisson.ID) error {
	list, err := s.list(ctx, agent)
	for _, o := range list {
		if o.ID == keep {
			continue
		}
		if rerr := s.service.RemoveSnapshot(ctx, string(o.ID)); rerr != nil && caisson.KindOf(rerr) != caisson.NotFound {
			err = errors.Join(err, fmt.Errorf("remove the snapshot %s: %w", o.ID, rerr))
		}
	}
	return err
}
