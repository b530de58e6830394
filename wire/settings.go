package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Refresh sends the wire process the settings that Handlers.Settings returns. It must be called after they have changed.
func (m *Manager) Refresh(ctx context.Context) error {
	m.mu.Lock()
	m.refreshes++
	l := m.link
	m.mu.Unlock()
	if l == nil {
		return nil // the next process starts with the current settings
	}
	return m.sendSettings(ctx, l)
}

// Forget makes the wire process return its leases of the budgets with these keys, whose limits have changed, so that it spends
// no more under the old limits.
func (m *Manager) Forget(ctx context.Context, budgets ...string) error {
	m.mu.Lock()
	l := m.link
	m.mu.Unlock()
	if l == nil {
		return nil
	}
	r, err := l.call(ctx, request{op: opForget}, forgetBody{budgets})
	if err != nil {
		return errUnavailable(err)
	}
	return r.err()
}

// sendSettings sends l's process the settings that Handlers.Settings returns.
func (m *Manager) sendSettings(ctx context.Context, l *link) error {
	m.settingsMu.Lock()
	defer m.settingsMu.Unlock()
	settings, err := m.handlers.Settings(ctx)
	if err != nil {
		return err
	}
	f, err := memoryFile(settings)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := l.call(ctx, request{op: opSettings}, nil, f)
	if err != nil {
		return errUnavailable(err)
	}
	if err := r.err(); err != nil {
		return fmt.Errorf("%w: %w", errSettings, err)
	}
	return nil
}

// errSettings reports that the wire process refuses new settings. The process keeps the previous ones and continues to work.
var errSettings = errors.New("the settings are refused")

// memoryFile returns v as JSON in an anonymous memory file (memfd): v has secrets, and may be larger than a packet.
func memoryFile(v any) (*os.File, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	defer clear(b)
	fd, err := unix.MemfdCreate("settings", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), "settings")
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
