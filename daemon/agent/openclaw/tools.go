package openclaw

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// defaultTools are the tools that a model gets if the agent specifies none. They exclude the process tool: without that tool a
// command runs to its end before the model continues, which is necessary because the agent stops at the end of its turn.
var defaultTools = []string{"group:fs", "exec", "view_image", "pdf", "web_fetch", "session_status"}

// deniedTools are the tools that no model gets, regardless of the agent's configuration: they control OpenClaw itself or other
// machines, wait for people, send messages in the user's name, or need an account at a service.
var deniedTools = []string{
	"automations", "gateway", "plugins", "openclaw", "heartbeat_respond", // control OpenClaw itself
	"group:nodes", "node_inference", "intent", "file_fetch", "file_write", "dir_fetch", "dir_list", // access other machines
	"group:messaging", "conversations_list", "conversations_send", "conversations_turn", "talk_voice", "github_identity_status", "github_publish",
	"ask_user", "suggest_task", "dismiss_task", "skill_workshop", "progress_card", "secrets", // wait for people or ask them
	"browser", "screen", "theme", "dashboard", "terminal", "portal", "canvas", "show_widget", "transcripts",
	"code_execution", "web_search", "x_search", "image_generate", "music_generate", "video_generate", "tts", // need an account
}

// toolGroups maps the groups of tools that no model gets to their members. No agent can allow such a group or a member of it.
var toolGroups = map[string][]string{
	"group:automation": {"heartbeat_respond", "automations", "gateway", "plugins", "openclaw"},
	"group:nodes":      {"nodes", "computer", "mobile_ui"},
	"group:messaging":  {"message"},
	"group:ui":         {"browser", "screen", "theme", "dashboard", "terminal", "portal", "canvas", "show_widget"},
}

// toolName returns the name that OpenClaw uses for the tool or group s: in lower case, and the present name of a renamed tool.
func toolName(s string) string {
	s = strings.ToLower(strings.TrimSpace(s))
	switch s {
	case "bash":
		return "exec"
	case "apply-patch":
		return "apply_patch"
	case "cron":
		return "automations"
	}
	return s
}

// toolFault returns the reason why a tool name cannot be part of a tool rule, or "" if it can.
func toolFault(s string) string {
	if s == "" || len(s) > 128 {
		return "it must have 1 to 128 characters"
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("_-:*.", r) {
			return fmt.Sprintf("it has %q, which no name of a tool has", r)
		}
	}
	return ""
}

// isDenied reports whether a name that an agent allows is a denied tool, or a group that contains only denied tools.
func isDenied(name string) bool {
	is := func(name string) bool {
		return slices.ContainsFunc(deniedTools, func(b string) bool { return b == name || slices.Contains(toolGroups[b], name) })
	}
	members, group := toolGroups[name]
	if !group {
		return is(name)
	}
	return is(name) || !slices.ContainsFunc(members, func(m string) bool { return !is(m) })
}

// resolveTools returns the tools that are offered and those that are denied, by OpenClaw's names. A denial takes precedence.
func resolveTools(allow, deny []string) (offered, denied []string, err error) {
	names := func(field string, list []string) ([]string, error) {
		out := make([]string, 0, len(list))
		for i, s := range list {
			s = toolName(s)
			if fault := toolFault(s); fault != "" {
				return nil, caisson.Invalidf(fmt.Sprintf("%s[%d]", field, i), "%q is no name of a tool: %s", truncate(s), fault)
			}
			if !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
		return out, nil
	}
	if offered, err = names("tools.allow", allow); err != nil {
		return nil, nil, err
	}
	if denied, err = names("tools.deny", deny); err != nil {
		return nil, nil, err
	}
	for i, s := range offered {
		if isDenied(s) {
			return nil, nil, caisson.Invalidf(fmt.Sprintf("tools.allow[%d]", i), "%s is not available in a sandbox: it controls OpenClaw itself, reaches other machines or waits for a person; remove it", s)
		}
	}
	if len(offered) == 0 {
		offered = slices.Clone(defaultTools)
	}
	if !slices.Contains(offered, "process") && !slices.Contains(offered, "group:runtime") && !slices.Contains(offered, "*") {
		denied = append(denied, "process")
	}
	for _, b := range deniedTools {
		if !slices.Contains(denied, b) {
			denied = append(denied, b)
		}
	}
	return offered, denied, nil
}
