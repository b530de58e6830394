package openclaw

import "cmp"

// dummyKey is the API key that OpenClaw sends. The model gateway identifies the caller by its wire and adds the real key
// outside of the sandbox.
const dummyKey = "none-needed"

// config is the part of OpenClaw's configuration that Caisson sets.
type config struct {
	Gateway   gateway        `json:"gateway"`
	Update    update         `json:"update"`
	Telemetry enabled        `json:"telemetry"` // reports to OpenClaw's authors; always off
	Discovery discovery      `json:"discovery"`
	Plugins   enabled        `json:"plugins"`  // plugins; always off
	Cron      enabled        `json:"cron"`     // scheduled tasks; always off
	Browser   enabled        `json:"browser"`  // control of a browser; always off
	ACP       enabled        `json:"acp"`      // Agent Client Protocol; always off
	Commands  map[string]any `json:"commands"` // kinds of commands in a prompt; all are off
	Logging   logging        `json:"logging"`
	Env       shellEnv       `json:"env"`
	Session   session        `json:"session"`
	Skills    skills         `json:"skills"`
	Models    models         `json:"models"`
	Agents    agents         `json:"agents"`
	Tools     tools          `json:"tools"`
}

// enabled switches one feature of OpenClaw on or off.
type enabled struct {
	Enabled bool `json:"enabled"`
}

// gateway is the section gateway of OpenClaw's configuration.
type gateway struct {
	Mode      string   `json:"mode"` // where OpenClaw's gateway runs: always "local", on this machine
	Port      int      `json:"port"` // port of OpenClaw's gateway
	Bind      string   `json:"bind"` // interface that it listens on; always "loopback"
	Auth      auth     `json:"auth"`
	ControlUI enabled  `json:"controlUi"` // web interface; always off
	Terminal  enabled  `json:"terminal"`  // access to a terminal; always off
	HTTP      struct { // HTTP endpoints
		Endpoints struct {
			Chat enabled `json:"chatCompletions"` // API that accepts prompts; always on
		} `json:"endpoints"`
	} `json:"http"`
	Reload struct { // what OpenClaw's gateway does when its configuration has changed
		Mode string `json:"mode"` // always "hybrid": the gateway loads it, and restarts only if the change requires that
	} `json:"reload"`
}

// auth is the section gateway.auth of OpenClaw's configuration.
type auth struct {
	Mode string `json:"mode"` // how requests are authenticated: always "none", they need no token
}

// update is the section update of OpenClaw's configuration.
type update struct {
	CheckOnStart bool    `json:"checkOnStart"` // whether a start looks for a new version; always false
	Auto         enabled `json:"auto"`         // automatic updates; always off
}

// discovery is the section discovery of OpenClaw's configuration.
type discovery struct {
	MDNS struct { // discovery with multicast DNS
		Mode string `json:"mode"` // extent of this discovery; always "off"
	} `json:"mdns"`
}

// logging is the section logging of OpenClaw's configuration.
type logging struct {
	Level        string `json:"level"`        // lowest level in the log file; always "warn"
	ConsoleLevel string `json:"consoleLevel"` // lowest level on stdout and stderr; always "warn"
	File         string `json:"file"`         // path of the log file
}

// shellEnv is the section env of OpenClaw's configuration.
type shellEnv struct {
	ShellEnv enabled `json:"shellEnv"` // variables that a login shell sets; always off
}

// session is the section session of OpenClaw's configuration. It disables the maintenance of old conversations, which would
// otherwise start with the first prompt after a fork, when the clock has jumped.
type session struct {
	Maintenance struct { // maintenance of old conversations
		Mode         string `json:"mode"`         // what happens to old ones: always "warn", they are reported, not removed
		MaxDiskBytes bool   `json:"maxDiskBytes"` // false means no limit on the size of sessions; the sandbox limits its disk
	} `json:"maintenance"`
}

// skills is the section skills of OpenClaw's configuration.
type skills struct {
	Load struct { // where skills are loaded from
		ExtraDirs []string `json:"extraDirs,omitempty"` // the agent's directories of skills
		Watch     bool     `json:"watch"`               // whether changed skills are loaded again; always false
	} `json:"load"`
}

// models is the section models of OpenClaw's configuration.
type models struct {
	Mode           string              `json:"mode"`           // always "replace": Providers replaces OpenClaw's own providers
	CatalogRefresh enabled             `json:"catalogRefresh"` // downloads of OpenClaw's own list of models; always off
	Providers      map[string]provider `json:"providers"`      // providers by name
}

// provider is a provider of models in OpenClaw's configuration.
type provider struct {
	BaseURL string            `json:"baseUrl"` // URL of the model gateway
	APIKey  string            `json:"apiKey"`  // API key; always "none-needed"
	API     string            `json:"api"`     // API of the models; always "openai-completions"
	Headers map[string]string `json:"headers"` // headers of each request
	Models  []model           `json:"models"`
}

// model is a model of a provider in OpenClaw's configuration.
type model struct {
	ID            string   `json:"id"`            // alias of the model
	Name          string   `json:"name"`          // display name
	Reasoning     bool     `json:"reasoning"`     // whether it is a reasoning model; always false
	Input         []string `json:"input"`         // kinds of input that the model accepts: text and image
	Cost          cost     `json:"cost"`          // price; always zero
	ContextWindow int64    `json:"contextWindow"` // size of the context window in tokens
	MaxTokens     int64    `json:"maxTokens"`     // maximum tokens of one answer
}

// cost is the price of a model in OpenClaw's configuration. It is always zero: the ledger records the costs of calls.
type cost struct {
	Input      int `json:"input"`      // price of input tokens
	Output     int `json:"output"`     // price of output tokens
	CacheRead  int `json:"cacheRead"`  // price of tokens read from a cache
	CacheWrite int `json:"cacheWrite"` // price of tokens written to a cache
}

// agents is the section agents of OpenClaw's configuration.
type agents struct {
	Defaults struct { // defaults for all agents
		Model         modelChoice `json:"model"`
		Workspace     string      `json:"workspace"`     // directory with the agent's instructions
		Cwd           string      `json:"cwd"`           // directory in which the agent works
		SkipBootstrap bool        `json:"skipBootstrap"` // whether to create no initial files in Workspace; always true
		Sandbox       mode        `json:"sandbox"`       // OpenClaw's own sandbox; always "off"
		Heartbeat     struct {
			Every string `json:"every"` // interval of prompts without a user; always "0m", which means never
		} `json:"heartbeat"`
	} `json:"defaults"`
	Ownership string           `json:"ownership"` // always "explicit", which OpenClaw requires if there are several agents
	Entries   map[string]entry `json:"entries"`   // agents by id
}

// mode is a section of OpenClaw's configuration that has only a mode.
type mode struct {
	Mode string `json:"mode"`
}

// modelChoice names the model of a persona, or the default model, in OpenClaw's configuration.
type modelChoice struct {
	Primary string `json:"primary"` // provider and alias, separated by a slash
}

// entry is the configuration of one of OpenClaw's agents: main or a persona.
type entry struct {
	Workspace string       `json:"workspace"`       // directory with the agent's instructions
	Cwd       string       `json:"cwd"`             // directory in which the agent works
	Model     *modelChoice `json:"model,omitempty"` // nil means the default model
	Tools     *toolRule    `json:"tools,omitempty"` // nil means no other rule than that for all agents
}

// toolRule lists the tools that a persona must not use, in OpenClaw's configuration.
type toolRule struct {
	Deny []string `json:"deny"` // names of tools
}

// tools is the section tools of OpenClaw's configuration.
type tools struct {
	Allow      []string `json:"allow"`      // names of the tools that agents may use
	Deny       []string `json:"deny"`       // names of the tools that no agent may use
	ToolSearch bool     `json:"toolSearch"` // whether models search for tools; always false
	CodeMode   bool     `json:"codeMode"`   // whether models call tools from code that they write; always false
	Elevated   enabled  `json:"elevated"`   // commands outside of OpenClaw's own sandbox; always off
	Exec       struct { // the tool exec, which runs commands
		Host     string `json:"host"`     // always "gateway": commands run where OpenClaw's gateway runs
		Security string `json:"security"` // always "full": all commands are allowed
		Ask      string `json:"ask"`      // always "off": commands run without approval
	} `json:"exec"`
}

// baseConfig returns the common part of all configurations. OpenClaw's own sandbox and approvals are off, because all of OpenClaw
// is in Caisson's sandbox. Everything that contacts other systems, waits for people or starts by itself is off as well.
func baseConfig(s Setup) config {
	var c config
	c.Gateway.Mode, c.Gateway.Bind, c.Gateway.Port = "local", "loopback", cmp.Or(s.Port, Port)
	// OpenClaw's gateway has no token: a token would be created before a snapshot, or be in a file that the agent can read.
	// Only the agent itself can reach the loopback interface of the sandbox.
	c.Gateway.Auth.Mode = "none"
	c.Gateway.HTTP.Endpoints.Chat.Enabled = true
	c.Gateway.Reload.Mode = "hybrid"
	c.Discovery.MDNS.Mode = "off"
	c.Commands = map[string]any{"native": false, "nativeSkills": false, "text": false, "bash": false, "config": false, "mcp": false, "plugins": false, "debug": false, "restart": false}
	c.Logging = logging{Level: "warn", ConsoleLevel: "warn", File: s.Home + "/log/openclaw.log"}
	c.Session.Maintenance.Mode = "warn"
	c.Skills.Load.ExtraDirs = s.Agent.Skills
	c.Agents.Ownership = "explicit"
	d := &c.Agents.Defaults
	d.Workspace, d.Cwd, d.SkipBootstrap = s.agentDir(mainAgent), s.Workdir, true
	d.Sandbox.Mode, d.Heartbeat.Every = "off", "0m"
	c.Tools.Exec.Host, c.Tools.Exec.Security, c.Tools.Exec.Ask = "gateway", "full", "off"
	return c
}
