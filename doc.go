// Package caisson is the domain of Caisson: types, interfaces and errors. It imports only the standard library.
//
// Caisson is one binary that runs AI agents in isolated sandboxes. A [Template] defines what a [Sandbox] starts from; a
// [Snapshot] captures one instant of it, and forks continue from there.
//
// Most folders are named after the process that runs their code; docs/architecture.md has the exceptions. The programs, and the two
// ends of the API:
//
//	cmd/caisson         the binary: commands, configuration, wiring; cmd/caisson-agent, -guestd, -sentry and -worker are the small programs
//	                    that it carries
//	httpapi, client     the API: server and client
//
// The daemon, with its cores, which implement the API's services:
//
//	daemon/engine       constructs drivers and cores, reconciles at start
//	daemon/sandboxes    the life of sandboxes, snapshots and forks: combines runtime, images and wires
//	daemon/runs         agents and runs: queue, attempts, sessions, warm snapshots, sub-runs
//	daemon/workspaces   layers, reviews, syncs and undo
//	daemon/volumes      directories that outlive sandboxes
//	daemon/repos        repositories, grants and deliveries
//	daemon/sshserver    SSH connections to sandboxes
//	daemon/models       the catalog of models, runs of other machines, and the settings of the wire process
//	daemon/credential   the encrypted store of secrets
//	daemon/events       the record of events, with notification of readers
//	daemon/sqlite       the store
//	daemon/agent        the catalog of agents, and the configuration of OpenClaw
//	runtime/gvisor      gVisor, embedded; runtime/fake implements the same interface in memory
//	ledger              budgets and the record of calls, in the daemon and in the wire process
//
// Jobs, which are short unprivileged processes:
//
//	job/worker          starts them
//	job/image           OCI references, directories, archives and the host itself as root file systems
//	job/gate            compares, checks and applies the changes of workspaces
//	job/relay           git on the host; job/relay/front, its HTTP end for sandboxes, runs in the wire process
//	job/forge           pull requests
//	job/sshproxy        SSH with one client
//
// The unprivileged wire process:
//
//	wire                network namespaces, TAPs and TCP/IP stacks; flow, dns and report below it
//	wire/wireproc       constructs the parts of the wire process
//	wire/egress         policies: compile, decide, explain
//	wire/llm            the model gateway; its APIs, scripted model and run tokens below it
//	wire/subruns        runs that agents in sandboxes request, over HTTP and MCP
//
// Programs in sandboxes:
//
//	guest/guestd        serves files and starts commands; the host's client for it
//	guest/drive         starts an agent and speaks its protocol
//	guest/task          the messages between the daemon and guest/drive
//	guest/coder         the built-in coding agent
//	guest/openclaw      the driver and installation of OpenClaw
//
// Cores get their drivers as interfaces; the test in internal/house has the packages that each package may import.
// docs/architecture.md contains the overview and where each decision is made, docs/threat-model.md the security guarantees.
package caisson
