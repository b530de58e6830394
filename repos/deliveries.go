package repos

import (
	"context"
	"errors"
	"time"

	"github.com/caisson-dev/caisson"
)

// GetDelivery implements [caisson.Repos].
func (s *Service) GetDelivery(ctx context.Context, ref string) (*caisson.Delivery, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	return s.c.Store.Deliveries().Get(ctx, in, ref)
}

// ListDeliveries implements [caisson.Repos].
func (s *Service) ListDeliveries(ctx context.Context, f caisson.DeliveryFilter) ([]*caisson.Delivery, bool, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, false, err
	}
	return s.c.Store.Deliveries().List(ctx, in, f)
}

// RetryDelivery implements [caisson.Repos].
func (s *Service) RetryDelivery(ctx context.Context, id caisson.ID) (*caisson.Delivery, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	d, err := s.c.Store.Deliveries().Update(ctx, in, id, func(d *caisson.Delivery) error {
		switch d.State {
		case caisson.DeliveryDelivered, caisson.DeliveryDropped:
			return caisson.Errorf(caisson.Conflict, "delivery %s is %s", d.ID, d.State)
		}
		d.RetriedAt, d.Attempts = now(), 0
		if d.State == caisson.DeliverySending {
			d.Attempts = 1 // which is under way
			return nil
		}
		d.State, d.NextAt, d.EndedAt = caisson.DeliveryWaiting, time.Time{}, time.Time{}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.c.Events.Publish(ctx, d.Account, "delivery.retried", string(d.ID), map[string]string{"repo": d.Repo, "branch": d.Branch})
	s.c.sender.wake()
	return d, nil
}

// wanted is when a delivery was made, or somebody has last asked for another try: from then on it is tried, and kept.
func wanted(d *caisson.Delivery) time.Time {
	if d.RetriedAt.After(d.CreatedAt) {
		return d.RetriedAt
	}
	return d.CreatedAt
}

// errSending ends an update of a delivery that is being sent.
var errSending = errors.New("it is being sent")

// DropDelivery implements [caisson.Repos].
func (s *Service) DropDelivery(ctx context.Context, id caisson.ID) (*caisson.Delivery, error) {
	in, _, err := scope(ctx)
	if err != nil {
		return nil, err
	}
	d, err := s.c.sender.drop(ctx, in, id)
	sending := errors.Is(err, errSending)
	if sending {
		// Its try stores what has become of it, and tells, as it alone knows: dropped, or delivered a moment before.
		if err := s.c.sender.interrupt(ctx, id); err != nil {
			return nil, err
		}
		d, err = s.c.sender.drop(ctx, in, id)
	}
	if errors.Is(err, errSending) {
		return nil, errBusy(id)
	}
	if err != nil {
		return nil, err
	}
	if !sending {
		s.c.Events.Publish(ctx, d.Account, "delivery.dropped", string(d.ID), map[string]string{"repo": d.Repo, "branch": d.Branch})
		s.c.sender.changed(ctx, d)
	}
	s.c.keeper.sweep(ctx, d.Account, d.Repo)
	return d, nil
}

// drop gives up a delivery that is not being sent.
func (c sender) drop(ctx context.Context, in caisson.Scope, id caisson.ID) (*caisson.Delivery, error) {
	return c.Store.Deliveries().Update(ctx, in, id, func(d *caisson.Delivery) error {
		switch d.State {
		case caisson.DeliveryDelivered:
			return caisson.Errorf(caisson.Conflict, "delivery %s was delivered already: its branch is at the remote", d.ID)
		case caisson.DeliverySending:
			return errSending
		case caisson.DeliveryDropped:
			return nil
		}
		dropped(d, false)
		return nil
	})
}

func errBusy(id caisson.ID) error {
	return caisson.Errorf(caisson.Conflict, "delivery %s is being sent right now; try again in a moment", id)
}

// errDropped is why a try ends that somebody has given up.
var errDropped = errors.New("the delivery was dropped")

// dropWait is for how long a try that is to end may go on.
const dropWait = 15 * time.Second

// A try is one that is under way.
type try struct {
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed when its outcome is stored
}

// interrupt ends a try and waits until its outcome is stored.
func (c sender) interrupt(ctx context.Context, id caisson.ID) error {
	c.mu.Lock()
	t := c.tries[id]
	c.mu.Unlock()
	if t == nil {
		return nil // it has ended meanwhile
	}
	t.cancel(errDropped)
	timer := time.NewTimer(dropWait)
	defer timer.Stop()
	select {
	case <-t.ended:
		return nil
	case <-timer.C:
		return errBusy(id)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dropped makes d one that somebody has given up, perhaps during a try. What the remote may have of it nevertheless is said.
func dropped(d *caisson.Delivery, sending bool) {
	d.State, d.NextAt, d.EndedAt, d.Error = caisson.DeliveryDropped, time.Time{}, now(), ""
	sent := d.Sent != "" && d.Sent == d.Commit
	switch {
	case sent && d.Pull:
		d.Error = line("it was dropped after branch "+d.Branch+" had been sent: the remote has that, and perhaps the pull request", 1000)
	case sent:
		d.Error = line("it was dropped after branch "+d.Branch+" had been sent: the remote has that", 1000)
	case sending:
		d.Error = line("it was dropped while it was being sent: look whether the remote has branch "+d.Branch, 1000)
	}
}
