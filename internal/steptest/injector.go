package steptest

import (
	"context"
	"sync"

	"github.com/caisson-dev/caisson"
)

// An Effect is what goes wrong with a step of an operation. A test may have effects of its own, which it handles itself.
type Effect string

const (
	Fails     Effect = "fails"            // the step is not executed, and returns an error
	Loses     Effect = "loses its answer" // the step is executed, but returns an error
	Cancelled Effect = "is cancelled"     // the operation's context is cancelled just before the step
)

// An Injector counts the steps of an operation and makes one of them go wrong. It is safe for concurrent use.
type Injector struct {
	// Skips reports whether a step cannot have an effect; such steps are recorded, but not counted. nil skips none.
	Skips func(op string, e Effect) bool

	mu     sync.Mutex
	armed  bool               // steps are recorded, and one may go wrong; guarded by mu
	at     int                // the at-th counted step from now on is to go wrong; none if it is not positive; guarded by mu
	effect Effect             // what is to go wrong with the step; guarded by mu
	cancel context.CancelFunc // cancels the last context that Context returned; guarded by mu
	hit    string             // name of the step that went wrong, "" for none yet; guarded by mu
	steps  []string           // names of all steps since Arm; guarded by mu
}

// Arm records steps from now on, and makes step number at, from 1, go wrong with the effect e.
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

// Disarm ends the recording. It returns the name of the step that went wrong, "" for none, and the names of all steps.
func (i *Injector) Disarm() (hit string, steps []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.armed = false
	if i.cancel != nil {
		i.cancel()
	}
	return i.hit, i.steps
}

// Hit returns the name of the step that the injector has made go wrong since Arm was called, "" for none yet.
func (i *Injector) Hit() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.hit
}

// RunUncounted calls f, whose steps are not recorded and do not go wrong.
func (i *Injector) RunUncounted(f func()) {
	i.arm(false)
	defer i.arm(true)
	f()
}

// arm sets whether steps are recorded and may go wrong.
func (i *Injector) arm(armed bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.armed = armed
}

// TakeStep records the step op, and returns the effect with which it is to go wrong, or "" if it is not to go wrong.
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

// Do records the step op, and calls do unless the step is to go wrong with the effect Fails.
func (i *Injector) Do(op string, do func() error) error {
	_, err := Step(i, op, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

// Step records the step op, and returns the result of do, or an error if the step is to go wrong with the effect Fails or Loses.
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
