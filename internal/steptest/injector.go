package steptest

import (
	"context"
	"sync"

	"github.com/caisson-dev/caisson"
)

// An Effect is the way in which a step of an operation is disturbed. A test may have effects of its own, which it handles itself.
type Effect string

const (
	Fails     Effect = "fails"            // the step is not executed, and returns an error
	Loses     Effect = "loses its answer" // the step is executed, but returns an error
	Cancelled Effect = "is cancelled"     // the operation's context is cancelled just before the step
)

// An Injector counts the steps of an operation and disturbs one of them. It is safe for concurrent use.
type Injector struct {
	// Skips reports whether a step cannot have an effect; such steps are recorded, but not counted. nil skips none.
	Skips func(op string, e Effect) bool

	mu     sync.Mutex
	armed  bool               // steps are recorded and disturbed; guarded by mu
	at     int                // the at-th counted step from now on is to be disturbed; none if it is not positive; guarded by mu
	effect Effect             // the effect on the disturbed step; guarded by mu
	cancel context.CancelFunc // cancels the last context that Context returned; guarded by mu
	hit    string             // the disturbed step, "" for none yet; guarded by mu
	steps  []string           // all steps since Arm; guarded by mu
}

// Arm records steps from now on and disturbs step number at, from 1.
func (i *Injector) Arm(at int, e Effect) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.armed, i.at, i.effect, i.hit, i.steps = true, at, e, "", nil
}

// Context returns the context of an operation. The effect Cancelled and the method Disarm cancel it.
func (i *Injector) Context(ctx context.Context) context.Context {
	i.mu.Lock()
	defer i.mu.Unlock()
	ctx, i.cancel = context.WithCancel(ctx)
	return ctx
}

// Disarm ends the recording. It returns the disturbed step, "" for none, and the names of all steps.
func (i *Injector) Disarm() (hit string, steps []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.armed = false
	if i.cancel != nil {
		i.cancel()
	}
	return i.hit, i.steps
}

// Hit returns the disturbed step, "" for none yet.
func (i *Injector) Hit() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.hit
}

// RunUncounted calls f, whose steps are neither recorded nor disturbed.
func (i *Injector) RunUncounted(f func()) {
	i.arm(false)
	defer i.arm(true)
	f()
}

// arm sets whether steps are recorded and disturbed.
func (i *Injector) arm(armed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.armed = armed
}

// TakeStep records a step, and returns the effect if it is the step to disturb, else "".
func (i *Injector) TakeStep(op string) Effect {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.armed {
		return ""
	}
	i.steps = append(i.steps, op)
	if i.Skips != nil && i.Skips(op, i.effect) {
		return ""
	}
	if i.at--; i.at != 0 {
		return ""
	}
	i.hit = op
	if i.effect == Cancelled {
		i.cancel()
	}
	return i.effect
}

// Do records the step op, and calls do unless the step is disturbed by the effect Fails.
func (i *Injector) Do(op string, do func() error) error {
	_, err := Step(i, op, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

// Step is like Do, for a step with a result.
func Step[T any](i *Injector, op string, do func() (T, error)) (T, error) {
	return Execute(i.TakeStep(op), op, do)
}

// Execute executes the step op with an effect that TakeStep has returned: it calls do unless the effect is Fails.
func Execute[T any](e Effect, op string, do func() (T, error)) (v T, err error) {
	if e != Fails {
		if v, err = do(); e != Loses || err != nil {
			return v, err
		}
	}
	var none T
	return none, caisson.Errorf(caisson.Internal, "the step %s went wrong", op)
}
