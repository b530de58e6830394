package openclaw

import (
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// An Environment reports what is available to skills in a sandbox. A nil function means that nothing of its kind is available.
type Environment struct {
	HasProgram  func(name string) bool // reports whether a program is in the sandbox's PATH
	HasVariable func(name string) bool // reports whether a variable is in the agent's environment
	CanReach    func(host string) bool // reports whether the agent's policy allows HTTPS to a host
}

// Check returns, for each skill below the root of fsys, the requirements that the sandbox does not meet, and how to meet them.
func Check(fsys fs.FS, w Environment) []caisson.AgentCheck {
	list, faults := readSkills(fsys)
	var out []caisson.AgentCheck
	for _, s := range list {
		out = append(out, s.check(w)...)
	}
	for _, dir := range slices.Sorted(maps.Keys(faults)) {
		out = append(out, caisson.AgentCheck{
			Subject: "skill " + safetext.Escape(truncate(dir)), Status: caisson.CheckFailed, Detail: "SKILL.md cannot be used: " + safetext.Escape(faults[dir].Error()),
			Remedy: "correct the file, or remove the skill",
		})
	}
	return out
}

// check returns the requirements of a skill that are not met, or a single result with status ok if all are met.
func (s *Skill) check(w Environment) []caisson.AgentCheck {
	var out []caisson.AgentCheck
	add := func(status, detail, remedy string) {
		out = append(out, caisson.AgentCheck{Subject: "skill " + s.Name, Status: status, Detail: detail, Remedy: remedy})
	}
	lacks := func(has func(string) bool, names []string) (missing []string) {
		for _, n := range names {
			if has == nil || !has(n) {
				missing = append(missing, n)
			}
		}
		return missing
	}
	if len(s.Systems) > 0 && !slices.Contains(s.Systems, "linux") {
		add(caisson.CheckFailed, "it is for "+strings.Join(s.Systems, ", ")+" only, and a sandbox is Linux", "remove the skill")
		return out
	}
	if missing := lacks(w.HasProgram, s.Programs); len(missing) > 0 {
		add(caisson.CheckFailed, "programs are missing: "+strings.Join(missing, ", "), "add to the agent's setup a step that installs them"+s.hint())
	}
	if len(s.AnyOf) > 0 && len(lacks(w.HasProgram, s.AnyOf)) == len(s.AnyOf) {
		add(caisson.CheckFailed, "none of its programs was found: "+strings.Join(s.AnyOf, ", "), "add to the agent's setup a step that installs one of them"+s.hint())
	}
	if missing := lacks(w.HasVariable, s.Env); len(missing) > 0 {
		add(caisson.CheckFailed, "variables are not set: "+strings.Join(missing, ", "),
			"store the secret with caisson credential set and let the wire add it to requests, and set the variable to a placeholder in the agent's env")
	}
	for _, c := range s.Config {
		add(caisson.CheckWarning, "it needs OpenClaw's setting "+c+", which Caisson writes", "use the skill without it, or remove the skill")
	}
	if missing := lacks(w.CanReach, s.Hosts); len(missing) > 0 {
		add(caisson.CheckWarning, "its text names hosts that the agent may not reach: "+strings.Join(missing, ", "),
			"allow those that it needs in the agent's policy: {action: allow, host: "+missing[0]+", ports: [443]}")
	}
	if len(out) == 0 {
		add(caisson.CheckOK, "all its requirements are met", "")
	}
	return out
}

// hint returns, for the remedy of a check, the commands with which the skill's author suggests to install what is missing.
func (s *Skill) hint() string {
	if len(s.Install) == 0 {
		return ""
	}
	return " (its author suggests " + strings.Join(s.Install, " or ") + ")"
}
