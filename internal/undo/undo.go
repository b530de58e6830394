// Package undo takes back the steps of something that failed half-way.
package undo

import (
	"errors"
	"slices"
)

// A Stack holds the opposites of the steps done so far. The zero value is empty. It is not safe for concurrent use.
type Stack struct{ steps []func() error }

// Push adds the opposite of a step: call it as soon as the step may have done something.
func (s *Stack) Push(step func() error) { s.steps = append(s.steps, step) }

// Run takes everything back, last step first, and returns what went wrong with that. Errors do not keep later ones from
// running.
func (s *Stack) Run() error {
	var errs []error
	for _, step := range slices.Backward(s.steps) {
		errs = append(errs, step())
	}
	s.steps = nil
	return errors.Join(errs...)
}

// Release forgets the steps: all is done, nothing is to be taken back.
func (s *Stack) Release() { s.steps = nil }
