// Package test tests the built binary from the outside, with real sandboxes: behaviour in scripts (testdata), the promises
// of docs/threat-model.md and bad days in Go.
//
// Every test has a data directory of its own and ends by proving that nothing of it is left on the host.
package test
