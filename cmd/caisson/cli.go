package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// globals are the flags that every command has. For a flag that is not given, the environment is used, or else the configuration
// file. There is no flag for the token of the API, because arguments are visible to every user of a machine.
type globals struct {
	Data    string `help:"Data directory (CAISSON_DATA)." placeholder:"DIR" group:"global" complete:"file"`
	Host    string `help:"URL of a daemon elsewhere: https://host:port (CAISSON_HOST; its token in CAISSON_TOKEN)." placeholder:"URL" group:"global"`
	Account string `help:"Account to act for (CAISSON_ACCOUNT)." placeholder:"NAME" group:"global"`
	Config  string `help:"Configuration file (CAISSON_CONFIG; default ${configFile} if it exists)." placeholder:"FILE" group:"global" complete:"file"`
	Output  string `help:"Form of the output: ${enum}. text is another name of table, for what is no table." short:"o" enum:"table,text,json,jsonl,yaml" default:"table" placeholder:"FORMAT" group:"global"`
	Quiet   bool   `help:"Print only ids or names, and no progress." short:"q" group:"global"`
	NoColor bool   `help:"No colours (NO_COLOR)." group:"global"`
	RawTTY  bool   `name:"raw-tty" help:"Pass everything on to the terminal, even what a hostile program could use against you." group:"global"`
}

// cli is the command line, as kong parses it.
type cli struct {
	globals

	Sandbox    sandboxCmd    `cmd:"" help:"Make, use and remove sandboxes."`
	Run        runCmd        `cmd:"" help:"Run an agent on a task and show its answer."`
	Attach     attachCmd     `cmd:"" help:"Show a run from its beginning to its end, or use a terminal in a sandbox."`
	Logs       anyLogsCmd    `cmd:"" help:"Show the log of a run or sandbox."`
	Cancel     cancelCmd     `cmd:"" help:"Cancel runs."`
	Retry      retryCmd      `cmd:"" help:"Start another attempt of a run that has failed."`
	Runs       runsCmd       `cmd:"" help:"List, show and remove runs."`
	Session    sessionCmd    `cmd:"" help:"List and end conversations with agents."`
	Agent      agentCmd      `cmd:"" help:"Manage agents."`
	Exec       execCmd       `cmd:"" help:"Run a program in a sandbox."`
	Terminal   terminalCmd   `cmd:"" help:"List and remove terminals in sandboxes."`
	Shell      shellCmd      `cmd:"" help:"Open a shell in a sandbox."`
	Service    serviceCmd    `cmd:"" help:"Manage the programs that sandboxes keep running."`
	SSH        sshCmd        `cmd:"" name:"ssh" help:"Connect to a sandbox with ssh."`
	SSHConfig  sshConfigCmd  `cmd:"" name:"ssh-config" help:"Print a configuration with which ssh, scp and editors reach sandboxes."`
	Top        topCmd        `cmd:"" help:"Show all sandboxes with their use of processors, memory and network."`
	Ps         psCmd         `cmd:"" help:"List the processes of a sandbox, or the running sandboxes."`
	Cp         cpCmd         `cmd:"" help:"Copy files into or out of a sandbox."`
	Forward    forwardCmd    `cmd:"" name:"port-forward" help:"Forward ports of this machine to servers in a sandbox."`
	Diff       diffCmd       `cmd:"" help:"Show the changes in a workspace."`
	Sync       syncCmd       `cmd:"" help:"Review what has changed in a workspace, and apply it to the directory."`
	Workspace  workspaceCmd  `cmd:"" help:"List and remove workspaces, which are host directories as sandboxes see them."`
	Volume     volumeCmd     `cmd:"" help:"Manage directories that outlive sandboxes."`
	Route      routeCmd      `cmd:"" help:"Manage routes, which lead requests from outside to ports of sandboxes."`
	Open       openCmd       `cmd:"" help:"Make a URL for a port of a sandbox, and open it."`
	Repo       repoCmd       `cmd:"" help:"Manage git repositories that agents may work on."`
	Relay      relayCmd      `cmd:"" help:"Manage deliveries of commits to the remotes of repositories."`
	Snapshot   snapshotCmd   `cmd:"" help:"List and remove snapshots."`
	Policy     policyCmd     `cmd:"" help:"Manage the network policies of sandboxes, and explain their decisions."`
	Template   templateCmd   `cmd:"" help:"Manage templates of sandboxes."`
	Image      imageCmd      `cmd:"" help:"Manage root file systems."`
	Token      tokenCmd      `cmd:"" help:"Manage tokens for access over the network."`
	Credential credentialCmd `cmd:"" help:"Manage secrets, which sandboxes can use but not read."`
	Audit      auditCmd      `cmd:"" help:"Verify the event log."`
	Events     eventsCmd     `cmd:"" help:"Follow what happens."`
	Model      modelCmd      `cmd:"" help:"Show the available models and their prices."`
	Usage      usageCmd      `cmd:"" help:"Show what calls of models cost."`
	Budget     budgetCmd     `cmd:"" help:"Bound what calls of models may cost."`
	Df         dfCmd         `cmd:"" help:"Show disk usage."`
	Serve      serveCmd      `cmd:"" help:"Run the daemon."`
	Daemon     daemonCmd     `cmd:"" help:"Show, stop, restart or reload the daemon, and read its log."`
	Backup     backupCmd     `cmd:"" help:"Write the state of the data directory to a file."`
	Restore    restoreCmd    `cmd:"" help:"Make a data directory from a backup."`
	Gateway    gatewayCmd    `cmd:"" help:"Serve models to the sandboxes of other machines."`
	Setup      setupCmd      `cmd:"" help:"Ask for a provider, its key and a model, try them, and write the configuration."`
	Init       initCmd       `cmd:"" help:"Write a configuration file with comments."`
	Config     configCmd     `cmd:"" name:"config" help:"Inspect the configuration."`
	Doctor     doctorCmd     `cmd:"" help:"Check this machine and say how to fix what is missing."`
	Completion completionCmd `cmd:"" help:"Print a completion script for a shell."`
	Version    versionCmd    `cmd:"" help:"Print the version."`
	Help       helpCmd       `cmd:"" name:"help" help:"Explain a command."`
	Complete   completeCmd   `cmd:"" name:"__complete" hidden:""`
}

// app is one invocation of the command line.
type app struct {
	stdio
	startedAt  time.Time // when the command was started
	args       []string  // the command line without the name of the program
	globals    globals   // the global flags; before parsing has succeeded, only Output is set
	interrupts *interrupts
	parser     *kong.Kong
	cfg        *config // the settings; nil until they are loaded, as they are for each command with a parameter of type api
	restore    func()  // restores the user's terminal; nil before rawTerminal was called
}

// main parses args and runs the command.
func (a *app) main(ctx context.Context, args []string) error {
	a.startedAt = time.Now()
	a.args, a.globals.Output = args, outputFormat(args) // the format of errors that occur before parsing has succeeded
	var c cli
	helped := false
	parser, err := kong.New(&c,
		kong.Name("caisson"),
		kong.Description("Caisson runs AI agents in sealed sandboxes."),
		kong.Writers(a.out, a.err),
		kong.Exit(func(int) { helped = true }),
		kong.Vars{"configFile": defaultConfigFile, "defaultDetachKeys": defaultDetachKeys},
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, FlagsLast: true, WrapUpperBound: 120}),
		kong.ExplicitGroups([]kong.Group{{Key: "global", Title: "Global flags:"}, {Key: "new", Title: "Flags for a new sandbox:"}, {Key: "repo", Title: "Flags for a repository:"}}),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(a),
		kong.BindToProvider(a.connect),
		kong.BindToProvider(newLocalDaemon),
	)
	if err != nil {
		return err
	}
	a.parser = parser
	args = withoutAliases(parser.Model.Node, args)
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case args[0] == "--version":
		args[0] = "version"
	}
	kctx, err := parser.Parse(args)
	switch {
	case helped:
		return nil
	case err != nil:
		return newUsageError(err)
	}
	for _, p := range kctx.Path {
		if f := p.Flag; f != nil && f.Tag.Has("positive") && f.Target.IsZero() {
			return &usageError{err: fmt.Errorf("--%s must be greater than 0; leave it out for the default", f.Name), command: kctx.Selected().FullPath()}
		}
	}
	a.globals = c.globals
	if a.globals.Output == "text" {
		a.globals.Output = "table"
	}
	return kctx.Run()
}

// outputFormat returns the output format that -o selects in arguments that may be invalid: "json", "jsonl", "yaml" or else
// "table".
func outputFormat(args []string) string {
	for i, arg := range args {
		if arg == "--" {
			break
		}
		v, ok := strings.CutPrefix(arg, "--output=")
		if !ok {
			v, ok = strings.CutPrefix(arg, "-o")
			v = strings.TrimPrefix(v, "=")
		}
		if (arg == "-o" || arg == "--output") && i+1 < len(args) {
			v, ok = args[i+1], true
		}
		if ok && slices.Contains([]string{"json", "jsonl", "yaml"}, v) {
			return v
		}
	}
	return "table"
}

// helpCmd implements commands such as "caisson help sandbox create".
type helpCmd struct {
	Command []string `arg:"" optional:"" help:"The command to explain."`
}

func (c *helpCmd) Help() string {
	return examples("caisson help", "caisson help sandbox create")
}

func (c *helpCmd) Run(ctx context.Context, a *app) error {
	b := &app{stdio: a.stdio, interrupts: a.interrupts}
	return b.main(ctx, append(slices.Clone(c.Command), "--help"))
}

// examples returns the section of a command's help that lists examples of command lines.
func examples(lines ...string) string {
	return "Examples:\n\n    " + strings.Join(lines, "\n    ")
}

// infof writes a message for people to standard error, unless --quiet was given.
func (a *app) infof(format string, args ...any) {
	if !a.globals.Quiet {
		fmt.Fprintf(a.err, format+"\n", args...)
	}
}

// aliases maps other names of commands to the names that kong knows.
var aliases = map[string]string{"list": "ls", "delete": "rm", "inspect": "show"}

// withoutAliases returns args with the names of commands in place of their aliases. If kong knew the aliases, they would appear
// in each of its messages.
func withoutAliases(n *kong.Node, args []string) []string {
	args = slices.Clone(args)
	for i, arg := range args {
		if arg == "--" || len(n.Children) == 0 {
			break
		}
		if i > 0 && strings.HasPrefix(args[i-1], "-") {
			continue // arg may be the value of a flag, such as an account called "list"
		}
		if c := findChild(n, arg); c != nil {
			n = c
		} else if c := findChild(n, aliases[arg]); c != nil {
			args[i], n = c.Name, c
		}
	}
	return args
}
