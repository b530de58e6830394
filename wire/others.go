package wire

import (
	"context"
	"encoding/json"
	"fmt"

	caisson "github.com/caisson-dev/caisson"
)

// chunkBytes bounds what the wire process is told of runs at once, so that no list is too long for a message.
const chunkBytes = 1 << 20

// ChangeRuns tells the wire process which runs on other machines have changed, after the change is in what Handlers.Runs returns.
// When it returns nil the change is in force; if the process dies meanwhile, the next one begins with it.
func (m *Manager) ChangeRuns(ctx context.Context, change caisson.GatewayRunChange) error {
	m.runs.Lock()
	defer m.runs.Unlock()
	m.mu.Lock()
	l := m.link
	m.mu.Unlock()
	if l == nil || m.cfg.Listen == nil {
		return nil // the next one is told all runs
	}
	r, err := changeRuns(ctx, l, change)
	if err == nil {
		return r.err()
	}
	if ctx.Err() == nil {
		l.kill() // the next one is told all runs
	}
	return ctx.Err()
}

func changeRuns(ctx context.Context, l *link, change caisson.GatewayRunChange) (reply, error) {
	f, err := memoryFile(change)
	if err != nil {
		return reply{}, err
	}
	defer f.Close()
	return l.call(ctx, request{op: opRuns}, nil, f)
}

// serveOthers tells a new process all runs on other machines, and then gives it the socket on which it serves them: it must not
// say of a run that it is not known because it has not heard of it yet. The process is the Manager's link already, so that
// no change falls between.
func (s *session) serveOthers(ctx context.Context) error {
	if s.m.cfg.Listen == nil {
		return nil
	}
	if err := s.tellRuns(ctx); err != nil {
		return fmt.Errorf("runs: %w", err)
	}
	r, err := s.link.call(ctx, request{op: opListen}, nil, s.m.cfg.Listen)
	if err == nil {
		err = r.err()
	}
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return nil
}

func (s *session) tellRuns(ctx context.Context) error {
	s.m.runs.Lock()
	defer s.m.runs.Unlock()
	list, err := s.m.handlers.Runs(ctx)
	if err != nil {
		return err
	}
	for len(list) > 0 {
		n, size := 0, 0
		for n < len(list) && (n == 0 || size < chunkBytes) {
			b, err := json.Marshal(list[n])
			if err != nil {
				return err
			}
			size += len(b)
			n++
		}
		r, err := changeRuns(ctx, s.link, caisson.GatewayRunChange{Put: list[:n]})
		if err == nil {
			err = r.err()
		}
		if err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}
