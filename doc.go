// Package caisson is the domain of Caisson: types, interfaces and errors. It imports only the standard library.
//
// Caisson is one binary that runs AI agents in isolated sandboxes. A [Template] defines what a [Sandbox] starts from; a
// [Snapshot] captures one instant of it, and forks continue from there.
//
// The packages, from the outside in:
//
//	cmd/caisson        the binary: commands, configuration, wiring
//	httpapi, client    the API: server and client
//	engine             constructs the cores, reconciles at start, collects garbage
//	runs               the core of agents and runs: queue, attempts, sessions, warm snapshots
//	sandboxes          the lifecycle core: combines runtime, image and wire
//	agent              the catalog of agents; below it the drivers in sandboxes, the built-in coding agent, and OpenClaw
//	runtime/gvisor     gVisor, embedded; runtime/fake implements the same interface in memory
//	image              OCI references, directories, archives and the host itself as root file systems
//	wire               network namespaces, TAPs, and the unprivileged wire process; flow, name and report below it
//	tools              operations that agents may request over the wire: runs of other agents
//	edge               constructs the parts of the wire process
//	egress             policies: compile, decide, explain
//	llm                the model gateway; its APIs, prices, scripted model and run tokens below it
//	ledger             budgets and the record of calls, in the daemon and in the gateway
//	credential         the encrypted store of secrets
//	inside             the program that serves files from within a sandbox
//	worker             short unprivileged jobs for everything that parses untrusted input
//	sqlite             the store
//
// Cores import drivers and this package; drivers import only this package, never each other. docs/architecture.md
// contains the overview, docs/threat-model.md the security guarantees.
package caisson
