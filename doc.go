// Package caisson is the domain of Caisson: types, interfaces and errors. It imports only the standard library.
//
// Caisson is one binary that runs AI agents in isolated sandboxes. A [Template] defines what a [Sandbox] starts from; a
// [Snapshot] captures one instant of it, and forks continue from there.
//
// The packages, from the outside in:
//
//	cmd/caisson         the binary: commands, configuration, wiring; cmd/caisson-* are the small programs that it carries
//	httpapi, client     the API: server and client
//	engine              constructs drivers and cores, reconciles at start
//
// Cores, which implement the API's services:
//
//	sandboxes           the life of sandboxes, snapshots and forks: combines runtime, images and wires
//	runs                agents and runs: queue, attempts, sessions, warm snapshots
//	workspaces          layers, reviews, syncs and undo
//	volumes             directories that outlive sandboxes
//	repos               repositories, grants and deliveries
//	models              the catalog of models, runs of other machines, and what the wire process is configured with
//	ledger              budgets and the record of calls, in the daemon and in the wire process
//	credential          the encrypted store of secrets
//	events              the record of events, with notification of readers
//
// Drivers and other parts:
//
//	runtime/gvisor      gVisor, embedded; runtime/fake implements the same interface in memory
//	image               OCI references, directories, archives and the host itself as root file systems
//	gate                compares, checks and applies the changes of workspaces
//	relay, forge        git on the host; pull requests
//	worker              short unprivileged jobs that parse untrusted input
//	agent               the catalog of agents; below it the built-in agents and what is known of OpenClaw
//	sqlite              the store; storetest is its test suite
//
// In the unprivileged wire process:
//
//	wire                network namespaces, TAPs and TCP/IP stacks; flow, dns and report below it
//	wireproc            constructs the parts of the wire process
//	egress              policies: compile, decide, explain
//	llm                 the model gateway; its APIs, scripted model and run tokens below it
//	subruns             runs that agents in sandboxes request, over HTTP and MCP
//
// In sandboxes:
//
//	guestd              the program that serves files and starts commands, and the host's client for it
//	agent/drive         starts an agent and speaks its protocol
//	agent/coder         the built-in coding agent
//
// Cores get their drivers as interfaces; the test in internal/house has the packages that each package may import.
// docs/architecture.md contains the overview, docs/threat-model.md the security guarantees.
package caisson
