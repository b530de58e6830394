package repos

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/caisson-dev/caisson"
)

// deliveries adds searches to the store of deliveries.
type deliveries struct{ caisson.DeliveryStore }

// each yields the deliveries that f selects within the scope in, newest first. After an error it yields no more deliveries.
func (s deliveries) each(ctx context.Context, in caisson.Scope, f caisson.DeliveryFilter) iter.Seq2[*caisson.Delivery, error] {
	f.Limit = 1000
	return caisson.All(ctx, s.List, in, f, func(f *caisson.DeliveryFilter, d *caisson.Delivery) { f.Before = d.ID })
}

// last returns the newest delivery of a repository for which match returns true; nil if there is none.
func (s deliveries) last(ctx context.Context, account, repo string, match func(*caisson.Delivery) bool) (*caisson.Delivery, error) {
	for d, err := range s.each(ctx, caisson.In(account), caisson.DeliveryFilter{Repo: repo}) {
		if err != nil || match(d) {
			return d, err
		}
	}
	return nil, nil
}

// requestedAt returns when a delivery was created, or when a user last retried it. From that time on it is retried for
// Settings.Tries, and its commits are kept for Settings.Keep.
func requestedAt(d *caisson.Delivery) time.Time {
	if d.RetriedAt.After(d.CreatedAt) {
		return d.RetriedAt
	}
	return d.CreatedAt
}

// setDropped sets the state of d to dropped, and d.Error to a text that says whether the remote may have the branch. sending is
// whether d was dropped during an attempt.
func setDropped(d *caisson.Delivery, sending bool) {
	d.State, d.NextAt, d.EndedAt, d.Error = caisson.DeliveryDropped, time.Time{}, now(), ""
	sent := d.Sent != "" && d.Sent == d.Commit
	switch {
	case sent && d.Pull:
		d.Error = plainLine("it was dropped after branch "+d.Branch+" had been sent: the remote has the branch, and perhaps the pull request", 1000)
	case sent:
		d.Error = plainLine("it was dropped after branch "+d.Branch+" had been sent: the remote has the branch", 1000)
	case sending:
		d.Error = plainLine("it was dropped while it was being sent: look whether the remote has branch "+d.Branch, 1000)
	}
}

// GetDelivery implements [caisson.Repos].
func (s *Service) GetDelivery(ctx context.Context, ref string) (*caisson.Delivery, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	return s.deliveries.Get(ctx, in, ref)
}

// ListDeliveries implements [caisson.Repos].
func (s *Service) ListDeliveries(ctx context.Context, f caisson.DeliveryFilter) ([]*caisson.Delivery, bool, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, false, err
	}
	return s.deliveries.List(ctx, in, f)
}

// RetryDelivery implements [caisson.Repos].
func (s *Service) RetryDelivery(ctx context.Context, id caisson.ID) (*caisson.Delivery, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	d, err := s.deliveries.Update(ctx, in, id, func(d *caisson.Delivery) error {
		switch d.State {
		case caisson.DeliveryDelivered, caisson.DeliveryDropped:
			return caisson.Errorf(caisson.Conflict, "delivery %s is %s", d.ID, d.State)
		}
		d.RetriedAt, d.Attempts = now(), 0
		if d.State == caisson.DeliverySending {
			d.Attempts = 1 // the attempt that is under way
			return nil
		}
		d.State, d.NextAt, d.EndedAt = caisson.DeliveryWaiting, time.Time{}, time.Time{}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.events.Publish(ctx, d.Account, "delivery.retried", string(d.ID), map[string]string{"repo": d.Repo, "branch": d.Branch})
	s.queue.wake()
	return d, nil
}

// errSending is returned by an update of a delivery that is being sent.
var errSending = errors.New("it is being sent")

// DropDelivery implements [caisson.Repos].
func (s *Service) DropDelivery(ctx context.Context, id caisson.ID) (*caisson.Delivery, error) {
	in, _, err := caisson.ScopeOf(ctx)
	if err != nil {
		return nil, err
	}
	drop := func() (*caisson.Delivery, error) {
		return s.deliveries.Update(ctx, in, id, func(d *caisson.Delivery) error {
			switch d.State {
			case caisson.DeliveryDelivered:
				return caisson.Errorf(caisson.Conflict, "delivery %s was delivered already: its branch is at the remote", d.ID)
			case caisson.DeliverySending:
				return errSending
			case caisson.DeliveryDropped:
				return nil
			}
			setDropped(d, false)
			return nil
		})
	}
	d, err := drop()
	sending := errors.Is(err, errSending)
	if sending {
		// The attempt itself stores and publishes the outcome: dropped, or delivered if it ended before it was cancelled.
		if err := s.queue.interrupt(ctx, id); err != nil {
			return nil, err
		}
		d, err = drop()
	}
	if errors.Is(err, errSending) {
		return nil, errBusy(id)
	}
	if err != nil {
		return nil, err
	}
	if !sending {
		s.events.Publish(ctx, d.Account, "delivery.dropped", string(d.ID), map[string]string{"repo": d.Repo, "branch": d.Branch})
		s.queue.notify(ctx, d)
	}
	s.keeper.sweep(ctx, d.Account, d.Repo)
	return d, nil
}

// errBusy returns the Conflict error for a delivery that cannot be dropped because an attempt to send it is under way.
func errBusy(id caisson.ID) error {
	return caisson.Errorf(caisson.Conflict, "delivery %s is being sent right now; try again in a moment", id)
}
