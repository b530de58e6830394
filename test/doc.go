// Package test tests the built binary from the outside, with real sandboxes. Scripts in testdata test its behaviour; Go code
// tests the guarantees of docs/threat-model.md, and failures such as crashes.
//
// Every test has its own data directory, and checks at its end that it has left nothing on the host, such as processes and
// mounts.
package test
