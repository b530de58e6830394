// Package caisson is the domain of Caisson: types, interfaces and errors, with nothing but the standard library below it.
//
// Caisson is one binary that runs AI agents in sealed sandboxes. A [Template] says what a [Sandbox] starts from; a
// [Snapshot] captures one instant of it, and forks continue from there.
//
// The packages, from the outside in:
//
//	cmd/caisson        the binary: commands, configuration, wiring
//	httpapi, client    the API, both ends
//	engine             constructs the cores, reconciles at boot, collects garbage
//	runs               the core of agents and runs: queue, attempts, sessions, warm snapshots
//	sandboxes          the lifecycle core: combines runtime, image and wire
//	agent              the catalog of agents; below it what speaks with them in sandboxes, the built-in one, and OpenClaw
//	runtime/gvisor     gVisor, embedded; runtime/fake is the same contract in memory
//	image              OCI references, directories, archives and the host itself as root file systems
//	wire               network namespaces, TAPs, and the unprivileged process that answers them; flow, name and report below it
//	tools              what agents may ask for over the wire: runs of other agents
//	edge               constructs what runs in that process
//	egress             policies: compile, decide, explain
//	llm                the model gateway; its APIs, prices, scripted model and run tokens below it
//	ledger             budgets and the record of calls, both ends
//	credential         the encrypted store of secrets
//	inside             the program that serves files from within a sandbox
//	worker             short jobs without privileges for everything that reads what strangers wrote
//	sqlite             the store
//
// Cores import drivers and this package; drivers import only this package, never each other. docs/architecture.md has the
// picture, docs/threat-model.md the promises.
package caisson
