// Package test tests the built binary from the outside, with real sandboxes: behaviour in scripts (testdata), and the
// promises of docs/threat-model.md and failures in Go.
//
// Every test has its own data directory and finally checks that nothing of it is left on the host.
package test
