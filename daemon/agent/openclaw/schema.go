package openclaw

import "cmp"

// dummyKey is the API key that OpenClaw sends. The model gateway identifies the caller by its wire and adds the real key
// outside of the sandbox.
const dummyKey = "none-needed"

// config is the part of OpenClaw's configuration that Caisson sets.
type config struct {
	Gateway   gateway        `json:"gateway"`
	Update    update         `json:"update"`
	Telemetry enabled        `json:"telemetry"`
	Discovery discovery      `json:"discovery"`
	Plugins   enabled        `json:"plugins"`
	Cron      enabled        `json:"cron"`
	Browser   enabled        `json:"browser"`
	ACP       enabled        `json:"acp"`
	Commands  map[string]any `json:"commands"`
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
	Mode      string  `json:"mode"`
	Port      int     `json:"port"`
	Bind      string  `json:"bind"`
	Auth      auth    `json:"auth"`
	ControlUI enabled `json:"controlUi"`
	Terminal  enabled `json:"terminal"`
	HTTP      struct {
		Endpoints struct {
			Chat enabled `json:"chatCompletions"`
		} `json:"endpoints"`
	} `json:"http"`
	Reload struct {
		Mode string `json:"mode"`
	} `json:"reload"`
}

// auth is the section gateway.auth of OpenClaw's configuration.
type auth struct {
	Mode string `json:"mode"`
}

// update is the section update of OpenClaw's configuration.
type update struct {
	CheckOnStart bool    `json:"checkOnStart"`
	Auto         enabled `json:"auto"`
}

// discovery is the section discovery of OpenClaw's configuration.
type discovery struct {
	MDNS struct {
		Mode string `json:"mode"`
	} `json:"mdns"`
}

// logging is the section logging of OpenClaw's configuration.
type logging struct {
	Level        string `json:"level"`
	ConsoleLevel string `json:"consoleLevel"`
	File         string `json:"file"`
}

// shellEnv is the section env of OpenClaw's configuration.
type shellEnv struct {
	ShellEnv enabled `json:"shellEnv"`
}

// session is the section session of OpenClaw's configuration. It disables the maintenance of old conversations, which would
// otherwise start with the first prompt after a fork, when the clock has jumped.
type session struct {
	Maintenance struct {
		Mode         string `json:"mode"`
		MaxDiskBytes bool   `json:"maxDiskBytes"` // false means no limit on the size of sessions; the sandbox limits its disk
	} `json:"maintenance"`
}

// skills is the section skills of OpenClaw's configuration.
type skills struct {
	Load struct {
		ExtraDirs []string `json:"extraDirs,omitempty"`
		Watch     bool     `json:"watch"`
	} `json:"load"`
}

// models is the section models of OpenClaw's configuration.
type models struct {
	Mode           string              `json:"mode"`
	CatalogRefresh enabled             `json:"catalogRefresh"`
	Providers      map[string]provider `json:"providers"`
}

// provider is a provider of models in OpenClaw's configuration.
type provider struct {
	BaseURL string            `json:"baseUrl"`
	APIKey  string            `json:"apiKey"`
	API     string            `json:"api"`
	Headers map[string]string `json:"headers"`
	Models  []model           `json:"models"`
}

// model is a model of a provider in OpenClaw's configuration.
type model struct {
	ID            string   `json:"id"`
	Name          string   `json:"name"`
	Reasoning     bool     `json:"reasoning"`
	Input         []string `json:"input"`
	Cost          cost     `json:"cost"`
	ContextWindow int64    `json:"contextWindow"`
	MaxTokens     int64    `json:"maxTokens"`
}

// cost is the price of a model in OpenClaw's configuration. It is always zero: the ledger records the costs of calls.
type cost struct {
	Input      int `json:"input"`
	Output     int `json:"output"`
	CacheRead  int `json:"cacheRead"`
	CacheWrite int `json:"cacheWrite"`
}

// agents is the section agents of OpenClaw's configuration.
type agents struct {
	Defaults struct {
		Model         modelChoice `json:"model"`
		Workspace     string      `json:"workspace"`
		Cwd           string      `json:"cwd"`
		SkipBootstrap bool        `json:"skipBootstrap"`
		Sandbox       mode        `json:"sandbox"`
		Heartbeat     struct {
			Every string `json:"every"`
		} `json:"heartbeat"`
	} `json:"defaults"`
	Ownership string           `json:"ownership"`
	Entries   map[string]entry `json:"entries"`
}

// mode is a section of OpenClaw's configuration that has only a mode.
type mode struct {
	Mode string `json:"mode"`
}

// modelChoice names the model of a persona in OpenClaw's configuration.
type modelChoice struct {
	Primary string `json:"primary"`
}

// entry is the configuration of one of OpenClaw's agents: main or a persona.
type entry struct {
	Workspace string       `json:"workspace"`
	Cwd       string       `json:"cwd"`
	Model     *modelChoice `json:"model,omitempty"`
	Tools     *toolRule    `json:"tools,omitempty"`
}

// toolRule lists the tools that a persona must not use, in OpenClaw's configuration.
type toolRule struct {
	Deny []string `json:"deny"`
}

// tools is the section tools of OpenClaw's configuration.
type tools struct {
	Allow      []string `json:"allow"`
	Deny       []string `json:"deny"`
	ToolSearch bool     `json:"toolSearch"`
	CodeMode   bool     `json:"codeMode"`
	Elevated   enabled  `json:"elevated"`
	Exec       struct {
		Host     string `json:"host"`
		Security string `json:"security"`
		Ask      string `json:"ask"`
	} `json:"exec"`
}

// baseConfig returns the common part of all configurations. OpenClaw's own sandbox and approvals are off, because all of
// OpenClaw is in Caisson's sandbox. Everything that contacts other systems, waits for people or starts by itself is off as
// well.
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
