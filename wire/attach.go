package wire

import (
	"context"
	"errors"
	"os"

	caisson "github.com/caisson-dev/caisson"
)

// Attach implements [caisson.Wires]. It returns Conflict if the sandbox has a wire already, Exhausted if there are too many
// wires, and Unavailable while there is no wire process. The caller closes the namespace once the sandbox runs in it.
func (m *Manager) Attach(ctx context.Context, id caisson.ID, spec caisson.WireSpec) (*os.File, error) {
	if err := validateSandboxID(id); err != nil {
		return nil, err
	}
	l, err := m.awaitLink(ctx)
	if err != nil {
		return nil, err
	}
	a, created := m.wireState(id, spec.Guest)
	if !created {
		return nil, caisson.Errorf(caisson.Conflict, "sandbox %s has a wire already", id)
	}
	defer a.mu.Unlock()
	a.spec = spec
	ns, tap, err := newNamespace(string(id))
	if err != nil {
		m.removeWireState(id, a)
		return nil, caisson.Wrap(err, caisson.Internal, "cannot create a network namespace; see caisson doctor")
	}
	defer tap.Close()
	if err := m.sendTAP(ctx, l, id, a, tap); err != nil {
		m.removeWireState(id, a)
		ns.Close()
		return nil, err
	}
	return ns, nil
}

// Reattach implements [caisson.Wires]. It returns Invalid if netns is not the namespace that Attach of this or an earlier Manager
// returned for id. netns is not needed after the call.
func (m *Manager) Reattach(ctx context.Context, id caisson.ID, netns *os.File, spec caisson.WireSpec) error {
	if err := validateSandboxID(id); err != nil {
		return err
	}
	if netns == nil {
		return caisson.Invalidf("netns", "the sandbox's network namespace is required")
	}
	l, err := m.awaitLink(ctx)
	if err != nil {
		return err
	}
	a, created := m.wireState(id, spec.Guest)
	if !created {
		a.mu.Lock()
	}
	defer a.mu.Unlock()
	if a.detached {
		return caisson.Errorf(caisson.Conflict, "the wire of sandbox %s was detached meanwhile", id)
	}
	a.spec = spec
	if err := m.reopenTAP(ctx, l, id, a, netns); err != nil {
		if created {
			m.removeWireState(id, a)
		}
		return err
	}
	return nil
}

// Configure implements [caisson.Wires]. If the wire process dies during the call, the next one starts with the new spec.
func (m *Manager) Configure(ctx context.Context, id caisson.ID, spec caisson.WireSpec) error {
	m.mu.Lock()
	a := m.wires[id]
	m.mu.Unlock()
	if a == nil {
		return caisson.Errorf(caisson.NotFound, "sandbox %.40q has no wire", id)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.detached {
		return caisson.Errorf(caisson.NotFound, "sandbox %s has no wire", id)
	}
	was := a.spec
	a.spec = spec
	a.setGuest(&m.mu, spec.Guest)
	defer func() { a.setGuest(&m.mu, a.spec.Guest) }() // a.spec is the old spec again if the call fails
	if a.link == nil {
		return nil // the process receives the new spec later, together with the TAP
	}
	files, err := m.cfg.recordFile(id, spec)
	if err != nil {
		return err
	}
	defer closeAll(files...)
	r, err := a.link.call(ctx, request{op: opConfigure, id: id}, spec, files...)
	if caisson.KindOf(err) == caisson.Invalid {
		a.spec = was
		return err
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return nil // the process was killed; the next one starts with the new spec
	}
	if err := r.err(); err != nil {
		a.spec = was
		return err
	}
	return nil
}

// Detach implements [caisson.Wires]. It returns when the wire process has released the TAP or was killed.
func (m *Manager) Detach(ctx context.Context, id caisson.ID) error {
	m.mu.Lock()
	a := m.wires[id]
	m.mu.Unlock()
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.detached {
		return nil
	}
	if err := m.releaseTAP(ctx, id, a); err != nil {
		return err
	}
	m.removeWireState(id, a)
	return nil
}

// reopenTAP opens the TAP in ns and passes it to l's process. The caller must hold a.mu.
func (m *Manager) reopenTAP(ctx context.Context, l *link, id caisson.ID, a *wireState, ns *os.File) error {
	if err := m.releaseTAP(ctx, id, a); err != nil {
		return err
	}
	tap, err := openLabelledTAP(ns, string(id))
	if errors.Is(err, errWrongNamespace) {
		return caisson.Wrap(err, caisson.Invalid, "this is not the network namespace of sandbox %s", id)
	}
	if err != nil {
		return caisson.Wrap(err, caisson.Internal, "cannot reopen the wire of sandbox %s", id)
	}
	defer tap.Close()
	return m.sendTAP(ctx, l, id, a, tap)
}

// sendTAP passes a TAP to l's process. The caller must hold a.mu.
func (m *Manager) sendTAP(ctx context.Context, l *link, id caisson.ID, a *wireState, tap *os.File) error {
	files, err := m.cfg.recordFile(id, a.spec)
	if err != nil {
		return err
	}
	defer closeAll(files...)
	r, err := l.call(ctx, request{op: opAttach, id: id}, a.spec, append([]*os.File{tap}, files...)...)
	if caisson.KindOf(err) == caisson.Invalid {
		return err
	}
	if err != nil {
		return errUnavailable(err)
	}
	if err := r.err(); err != nil {
		return err
	}
	a.link = l
	return nil
}

// releaseTAP makes the wire process close the TAP. The caller must hold a.mu.
func (m *Manager) releaseTAP(ctx context.Context, id caisson.ID, a *wireState) error {
	if a.link == nil {
		return nil
	}
	m.mu.Lock()
	live := a.link == m.link
	m.mu.Unlock()
	if live {
		if _, err := a.link.call(ctx, request{op: opDetach, id: id}, nil); err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		// If the call failed although ctx has not ended, link.call has killed the process, which closes the TAP.
	}
	a.link = nil
	return nil
}

// recordFile opens the file in which a sandbox's model calls are recorded. It returns no file if the calls are not recorded.
func (c *Config) recordFile(id caisson.ID, spec caisson.WireSpec) ([]*os.File, error) {
	if spec.Models == nil || !spec.Models.Record || c.Record == nil {
		return nil, nil
	}
	f, err := c.Record(id)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Unavailable, "cannot record the sandbox's calls of models")
	}
	return []*os.File{f}, nil
}
