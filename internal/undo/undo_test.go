package undo_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/caisson-dev/caisson/internal/undo"
)

func TestStack(t *testing.T) {
	first, third := errors.New("first"), errors.New("third")
	var done []int
	step := func(n int, err error) func() error {
		return func() error { done = append(done, n); return err }
	}
	var s undo.Stack
	if err := s.Run(); err != nil {
		t.Errorf("an empty stack: %v", err)
	}
	s.Push(step(1, first))
	s.Push(step(2, nil))
	s.Push(step(3, third))
	err := s.Run()
	if !slices.Equal(done, []int{3, 2, 1}) {
		t.Errorf("taken back in the order %v", done)
	}
	if !errors.Is(err, first) || !errors.Is(err, third) {
		t.Errorf("error is %v", err)
	}
	if err := s.Run(); err != nil || len(done) != 3 {
		t.Errorf("a second run: %v, %v", done, err)
	}
	s.Push(step(4, first))
	s.Release()
	if err := s.Run(); err != nil || len(done) != 3 {
		t.Errorf("after a release: %v, %v", done, err)
	}
	s.Push(step(5, nil)) // A step may be pushed after Release.
	if err := s.Run(); err != nil || !slices.Equal(done, []int{3, 2, 1, 5}) {
		t.Errorf("reused: %v, %v", done, err)
	}
}
