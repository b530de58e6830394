// Package runtimetest is a conformance test suite for implementations of caisson.Runtime. Each implementation calls [Test] in
// its tests.
//
// The sandboxes run the program of package guestd: its test programs and its roles files and run. In the sandboxes of a real
// runtime the program is a static binary; in those of the fake runtime it consists of Go functions.
package runtimetest
