// Package undo rolls back the steps of an operation that failed half-way.
package undo

import (
	"errors"
	"slices"
)

// A Stack contains functions that undo the steps done so far. The zero value is empty. It is not safe for concurrent use.
type Stack struct{ steps []func() error }

// Push adds a function that undoes a step. It must be called as soon as the step may have had an effect.
func (s *Stack) Push(step func() error) { s.steps = append(s.steps, step) }

// Run undoes all steps, the last one first, and returns the joined errors. It continues after an error.
func (s *Stack) Run() error {
	var errs []error
	for _, step := range slices.Backward(s.steps) {
		errs = append(errs, step())
	}
	s.steps = nil
	return errors.Join(errs...)
}

// Release removes all functions after the operation has succeeded.
func (s *Stack) Release() { s.steps = nil }
