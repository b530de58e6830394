package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-dev/caisson"
)

// configTemplate is the content of the file that "caisson init" writes: every setting with its default, as a comment.
const configTemplate = `# Configuration of Caisson. Every line here shows a default; remove the # in front of a key to change it.
# A command's flag goes over the environment, and that over this file. Unknown keys are errors.
# "caisson config show" prints the settings in force.

# Where everything is kept: images, sandboxes, snapshots, the store, and the unix socket (always mode 0600).
#dataDir: /var/lib/caisson

# The daemon to talk to, if it is not the one of dataDir: https://host:7443. Its token comes from CAISSON_TOKEN.
#host: ""

# PEM file of the certificate authorities to trust for that daemon, instead of the system's (CAISSON_CA_FILE).
#caFile: ""

# The account to act for. Over the socket any account can be used; a token is for one account.
#account: ""

# Also serve the API over TCP, to clients with a token ("caisson token create"). TLS is required except on loopback.
#listen: ""
#tlsCert: ""
#tlsKey: ""

# How gVisor intercepts system calls: auto, systrap or ptrace. auto is systrap where it works.
#platform: auto

# What all sandboxes together must leave to the rest of the machine: else no more start. When less than half of diskReserve is left,
# the sandbox that writes most is stopped.
#limits:
#  maxSandboxes: 1000
#  memoryReserve: 512MiB
#  diskReserve: 1GiB
#  pidsReserve: 1024
#  poolMemory: 4GiB

# Addresses, or prefixes of addresses, of this machine that none of its interfaces has, for example because a cloud or a router
# translates its public address one to one. As at the addresses of its interfaces, clients with a token can reach nothing there, and
# nothing but what a rule for exactly that address allows.
#publicAddresses: []

# Registries that may be used without TLS, as host or host:port. Only for tests and closed networks. Clients with a
# token can use registries at public addresses of other machines, and these at any address.
#insecureRegistries: []

# PEM file of the authorities to trust for registries, besides those that this host trusts.
#registryCA: ""

# debug, info, warn or error.
#logLevel: info

# How long events are kept.
#eventRetention: 30d

# A daemon that a command started in the background exits when it has had no client and no sandbox for this time.
#idleExit: 30s

# The providers of models. The kind is openai, anthropic, gemini, litellm or scripted, the credential the name of one
# stored with "caisson credential set"; keys must not be written here. http is for this machine only.
# Without providers and models here there are those that are built in; see docs/models.md and "caisson model ls".
# maxTokensField is the field by which a provider of kind openai or litellm limits the answers of chats: max_completion_tokens for OpenAI,
# Azure and LiteLLM, else max_tokens. Set it if a provider ignores the default. For example:
#
# providers:
# - {name: anthropic, kind: anthropic, baseURL: https://api.anthropic.com, credential: ANTHROPIC_API_KEY}
# - {name: openai, kind: openai, baseURL: https://api.openai.com/v1, credential: OPENAI_API_KEY}
# - {name: demo, kind: scripted}
#providers: []

# PEM file of the authorities to trust for providers, besides those that this host trusts.
#providerCA: ""

# Where the key comes from that credentials are encrypted with, instead of a file in dataDir that is made at first use: a file,
# or a program with arguments that prints it, such as the client of a key management service (CAISSON_CREDENTIAL_KEY).
#credentialKeyFile: ""
#credentialKeyCommand: []

# What sandboxes can be granted, by alias; upstream is the provider's name for it. A run that names no model has the first one here that its
# agent can call. Prices are in US dollars per million tokens.
# Models without prices have those of an imported list ("caisson model import-prices"); a model without any is refused unless
# it is free. For example:
#
# models:
# - {alias: sonnet, provider: anthropic, upstream: claude-sonnet-4-5, prices: {input: 3, output: 15, cacheRead: 0.30, cacheWrite: 3.75}}
# - {alias: demo, provider: demo, free: true}
#models: []

# The maximum cost of the model calls of a sandbox without a budget, in US dollars, or none for no limit.
#defaultBudget: 10

# A directory with a YAML file for each additional agent; see docs/agents.md.
#agentsDir: /etc/caisson/agents

# How many runs may be under way on this host, and how many of one account; how many of an account may wait or be under way. A session's
# sandbox is kept in memory for sessionIdle after its last run, and its memory on disk until sessionFiles; after that only its files
# are kept. The records of ended runs are kept for keep. workspace is the maximum size copied into a run's workspace. A run
# that delivers commits ends when the remote has them, or after deliver.
#runs:
#  concurrent: 16
#  perAccount: 8
#  waiting: 200
#  sessionIdle: 10m
#  sessionFiles: 1d
#  keep: 30d
#  workspace: 4G
#  deliver: 1m

# Workspaces; see docs/workspaces.md. Names that match hide are hidden from sandboxes, besides those that look like secrets anyway. rules
# decide which changes may be applied to a directory, or delivered as commits. Changes that were not applied are kept for keep after the sandbox was
# removed. commands check changes before they are applied, each in a sandbox without network, and must exit with 0. For example:
#
# commands:
# - {name: tests, command: [make, test], image: "debian:12", time: 10m}
#workspaces:
#  hide: []
#  keep: 7d
#  rules: {only: [], deny: [], allow: [], maxFile: 64MiB, maxTotal: 1GiB, maxFiles: 20000, maxScan: 4MiB, scanTime: 1m}
#  commands: []

# The ingress, which serves routes and signed URLs; see docs/guides/routes.md. It is off unless listen is set: an address of its own, not that
# of the API. TLS is required except on loopback; the files are in PEM and are read again when they change. domain is the parent of the
# hosts of routes; with localhost, browsers on this machine find them without DNS.
#ingress:
#  listen: ""
#  domain: localhost
#  tls: {cert: "", key: ""}

# The relay for git repositories; see docs/relay.md. A delivery that cannot be sent is retried after firstRetry, then with growing
# delays for the time tries; an undelivered one is kept for keep. ca is a PEM file of additional certificate authorities to trust for remotes and
# forges. When the mirrors and clones of an account's repositories use the size space, its fetches, grants and pushes
# are refused.
#relay:
#  ca: ""
#  firstRetry: 5s
#  tries: 3d
#  keep: 30d
#  space: 20GiB

# One model gateway can serve the sandboxes of many machines; see docs/gateway.md. On its machine: listen (with TLS except on loopback).
# On the others: remoteURL; remoteAPI, the URL of that daemon's API, with which sandboxes are registered using remoteToken, a token created
# there; and remoteCA, a PEM file of the certificate authorities to trust for both instead of the system's. All machines sign and
# check with the same runTokenKeys of at least 32 bytes; the first signs, the second is valid while keys are exchanged. Keys and
# the token are names of credentials of the account local, or env:VARIABLE for a daemon that is started with serve or gateway.
#gateway:
#  listen: ""
#  tlsCert: ""
#  tlsKey: ""
#  remoteURL: ""
#  remoteCA: ""
#  remoteAPI: ""
#  remoteToken: ""
#  runTokenKeys: []

# Where clients connect over SSH whose keys are registered with caisson token create --ssh-key; the user name is the sandbox's. caisson
# ssh and caisson ssh-config need no listener.
#ssh:
#  listen: ""
`

// initCmd writes a configuration file.
type initCmd struct {
	File  string `arg:"" optional:"" help:"File to write; default ${configFile}." complete:"file"`
	Force bool   `help:"Replace an existing file."`
}

func (c *initCmd) Help() string {
	return examples("sudo caisson init", "caisson init ./caisson.yaml")
}

func (c *initCmd) Run(a *app) error {
	file := cmp.Or(c.File, a.globals.Config, a.getenv("CAISSON_CONFIG"), defaultConfigFile)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return localError("file", filepath.Dir(file), err)
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if c.Force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(file, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return caisson.Errorf(caisson.Conflict, "%s exists; use --force to replace it", file)
	}
	if err != nil {
		return localError("file", file, err)
	}
	_, err = f.WriteString(configTemplate)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	a.infof("wrote %s", file)
	return nil
}

// configCmd contains the command that prints the configuration.
type configCmd struct {
	Show configShowCmd `cmd:"" help:"Print the settings in force, without secrets."`
}

// configShowCmd prints the settings in force in the daemon, or those that a new daemon would have.
type configShowCmd struct {
	File bool `help:"Print what the file, the environment and the flags say, even if the daemon has not read it yet."`
}

func (c *configShowCmd) Help() string {
	return "If a daemon runs, its settings are printed, and standard error says where the file differs from them.\n\n" +
		examples("caisson config show", "CAISSON_LOG_LEVEL=debug caisson config show --file -o json")
}

func (c *configShowCmd) Run(ctx context.Context, a *app) error {
	cfg, err := configOrDefaults(a)
	if err != nil {
		return err
	}
	if cfg.fileMissing {
		a.infof("# %s does not exist; caisson init %s writes it", cfg.lookedFor, cfg.lookedFor)
	}
	if a.globals.Output == "table" {
		a.globals.Output = "yaml"
	}
	if st := c.daemonStatus(ctx, a, cfg); st != nil {
		return c.printInForce(a, cfg, st)
	}
	if cfg.File != "" {
		a.infof("# from %s", cfg.File)
	}
	return a.encode(cfg)
}

// daemonStatus returns the state of the daemon of the data directory, or nil if no daemon is running, or an old one that does not
// report its settings.
func (c *configShowCmd) daemonStatus(ctx context.Context, a *app, cfg *config) *caisson.DaemonStatus {
	if c.File || cfg.Host != "" {
		return nil
	}
	api, err := a.connectRunning(ctx)
	if err != nil {
		return nil
	}
	st, err := api.Status(ctx)
	if err != nil || len(st.Settings.InForce) == 0 {
		return nil
	}
	return st
}

// printInForce prints the settings that are in force in the daemon with the status st, and those of cfg that only commands use.
func (c *configShowCmd) printInForce(a *app, cfg *config, st *caisson.DaemonStatus) error {
	b, err := json.Marshal(st.Settings.InForce)
	if err != nil {
		return err
	}
	theirs := *cfg
	if err := json.Unmarshal(b, &theirs); err != nil {
		return caisson.Wrap(err, caisson.Unavailable, "the daemon's settings are not those of this version; run caisson daemon restart, or use --file")
	}
	a.infof("# in force in the daemon with pid %d, from %s", st.PID, cmp.Or(st.Settings.File, "defaults"))
	if len(st.Settings.Changed) > 0 {
		a.infof("# the file has other values for: %s; to apply them: %s", strings.Join(st.Settings.Changed, ", "), applyCommand(st.Settings.Changed))
	}
	if st.Settings.Invalid != "" {
		a.infof("# the file is invalid: %s", st.Settings.Invalid)
	}
	return a.encode(&theirs)
}
