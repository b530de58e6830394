// Package runtimetest is a conformance test suite for implementations of caisson.Runtime. Each implementation calls [Test] in
// its tests.
//
// The sandboxes run the program of package guestd: its test programs and its roles files and run. A real runtime contains it
// as a static binary, the fake runtime as Go functions.
package runtimetest
