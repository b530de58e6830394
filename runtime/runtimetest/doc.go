// Package runtimetest is a conformance test suite for implementations of caisson.Runtime. Each implementation calls [Test] in
// its tests.
//
// The sandboxes run the program of package guestd, which contains test programs. For a real runtime it is a static binary in the
// sandbox; for the fake runtime it consists of Go functions.
package runtimetest
