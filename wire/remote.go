package wire

import (
	"context"
	"encoding/json"
	"fmt"

	caisson "github.com/caisson-dev/caisson"
)

// chunkBytes is the size of the JSON of gateway runs, in bytes, at which sendRuns ends a message.
const chunkBytes = 1 << 20

// ChangeRuns sends the wire process a change of the runs on other machines, which the result of Handlers.Runs must already
// include. When ChangeRuns returns nil the change is in force; if the process dies during the call, the next one starts with it.
func (m *Manager) ChangeRuns(ctx context.Context, change caisson.GatewayRunChange) error {
	m.runsMu.Lock()
	defer m.runsMu.Unlock()
	m.mu.Lock()
	l := m.link
	m.mu.Unlock()
	if l == nil || m.cfg.Listen == nil {
		return nil // the next process receives all runs
	}
	r, err := changeRuns(ctx, l, change)
	if err == nil {
		return r.err()
	}
	if ctx.Err() == nil {
		l.kill() // the next process receives all runs
	}
	return ctx.Err()
}

// changeRuns sends a change of the runs on other machines to l's process.
func changeRuns(ctx context.Context, l *link, change caisson.GatewayRunChange) (reply, error) {
	f, err := memoryFile(change)
	if err != nil {
		return reply{}, err
	}
	defer f.Close()
	return l.call(ctx, request{op: opRuns}, nil, f)
}

// serveRemote sends a new process all runs on other machines, and then the socket on which it serves them, so that it never
// rejects a run that it has not received yet. The Manager already sends the process every change, so none is lost.
func (s *processState) serveRemote(ctx context.Context) error {
	if s.m.cfg.Listen == nil {
		return nil
	}
	if err := s.sendRuns(ctx); err != nil {
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

// sendRuns sends the process all gateway runs, in messages of about chunkBytes.
func (s *processState) sendRuns(ctx context.Context) error {
	s.m.runsMu.Lock()
	defer s.m.runsMu.Unlock()
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
