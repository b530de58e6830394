package main

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// usageError is an error in the command line.
type usageError struct {
	err     error
	command string // the command with the names of its parents, such as "caisson sandbox create"
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usagef returns a usageError that a command, and not kong, has found. command is the command without "caisson".
func usagef(command, format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...), command: "caisson " + command}
}

// newUsageError returns a usageError for an error of kong's parser.
func newUsageError(err error) error {
	u := &usageError{err: err, command: "caisson"}
	p, ok := errors.AsType[*kong.ParseError](err)
	if !ok || p.Context == nil {
		return u
	}
	node := p.Context.Model.Node
	if n := p.Context.Selected(); n != nil {
		u.command, node = n.FullPath(), n
	}
	u.err = errors.New(plainUsage(err.Error(), node))
	return u
}

// Patterns of the messages of kong that are replaced by clearer ones, or to which advice is added.
var (
	unknownFlag     = regexp.MustCompile(`^unknown flag (-\S+?)(?:, did you mean .*)?$`)
	unknownArgument = regexp.MustCompile(`^unexpected argument (\S+?)(?:, did you mean .*)?$`)
	missingArgument = regexp.MustCompile(`^expected "(<[^"]*)"$`)
	flagForValue    = regexp.MustCompile(`^--(\S+): expected .* value but got "(.*)" \(.* flag.*\).*$`) // flag instead of a value
	noWholeNumber   = regexp.MustCompile(`^(.*): expected a valid \d+ bit u?int but got (".*")$`)
	noNumber        = regexp.MustCompile(`^(.*): expected a float but got (".*") .*$`)
)

// advice contains the advice for common mistakes. A key is an unknown flag or argument, <name> for a missing argument, or … for
// one argument too many; the full name of the command or its last word may precede it. Most keys are flags and commands of other
// programs.
var advice = map[string]string{
	"-v":             "mount a directory with --mount SRC:DST[:rw]",
	"-p":             reachPorts,
	"--publish":      reachPorts,
	"--network":      "set what it may reach with --allow and --deny",
	"--net":          "set what it may reach with --allow and --deny",
	"--all":          "give the names, for example with $(caisson … ls -q)",
	"--cwd":          "work in a directory with -C or -w",
	"--budget":       "limit the cost of a run with --max-cost, and of many with caisson budget set",
	"--api-key":      "store the key with caisson credential set",
	"ls --all":       "leave it out; all are listed",
	"ls -a":          "leave it out; all are listed",
	"ps -a":          "caisson sandbox ls lists sandboxes in all states",
	"ps --all":       "caisson sandbox ls lists sandboxes in all states",
	"run -p":         "the prompt is the last argument: caisson run AGENT PROMPT; to reach ports: caisson port-forward",
	"run --print":    "the prompt is the last argument: caisson run AGENT PROMPT",
	"run --rm":       runAgents,
	"run --name":     runAgents,
	"run --kind":     "write --workspace-kind",
	"agent edit":     "change its file, and give it to caisson agent add again",
	"budget show":    "write caisson budget ls",
	"exec <command>": "write it after --, or open a shell with caisson shell SANDBOX",
	"shell …":        "to run a program: caisson exec SANDBOX -- PROGRAM",
}

// Texts that are the advice for more than one mistake.
const (
	reachPorts = "reach ports with caisson port-forward, caisson open or caisson route add"
	runAgents  = "run gives a task to an agent; for a program in a new sandbox: caisson exec --rm -it IMAGE -- PROGRAM"
)

// adviceFor returns the advice for a mistake in the arguments of the command node, or "" if there is none. mistake is the part
// of a key of advice after the command: the wrong flag or argument, or <name> of a missing one.
func adviceFor(node *kong.Node, mistake string) string {
	command := strings.TrimPrefix(node.FullPath(), "caisson ")
	for _, key := range []string{command + " " + mistake, node.Name + " " + mistake, mistake} {
		if text := advice[key]; text != "" {
			return text
		}
	}
	return ""
}

// plainUsage returns msg, an error message of kong, in clearer words and with advice if possible. node is the command in which
// kong has found the error.
func plainUsage(msg string, node *kong.Node) string {
	if m := unknownFlag.FindStringSubmatch(msg); m != nil {
		if text := adviceFor(node, m[1]); text != "" {
			return "unknown flag " + m[1] + "; " + text
		}
		if len(m[1]) == len("-x") { // omit kong's suggestion, for which all flags of one letter are equally similar
			return "unknown flag " + m[1]
		}
	}
	if m := unknownArgument.FindStringSubmatch(msg); m != nil {
		if text := cmp.Or(adviceFor(node, m[1]), advice[node.Name+" …"]); text != "" {
			return "unexpected argument " + m[1] + "; " + text
		}
		// Either the group of commands is missing before the command, or node has the same name as the intended command of
		// another group.
		command, rest := m[1], ""
		if node.Type != kong.ApplicationNode {
			command, rest = node.Name, " "+m[1]
		}
		if list := commandsInGroups(rootNode(node), command, rest); len(list) > 0 && (rest == "" || !strings.Contains(msg, "did you mean")) {
			return "unexpected argument " + m[1] + ", did you mean " + strings.Join(list, " or ") + "?"
		}
	}
	if m := missingArgument.FindStringSubmatch(msg); m != nil {
		name, _, _ := strings.Cut(m[1], " ")
		if text := adviceFor(node, name); text != "" {
			return msg + "; " + text
		}
	}
	if m := flagForValue.FindStringSubmatch(msg); m != nil {
		return fmt.Sprintf("--%s: %q looks like a flag; to use it as the value, write --%s=%s", m[1], m[2], m[1], m[2])
	}
	if m := noWholeNumber.FindStringSubmatch(msg); m != nil {
		return m[1] + ": " + m[2] + " is not a whole number"
	}
	if m := noNumber.FindStringSubmatch(msg); m != nil {
		return m[1] + ": " + m[2] + " is not a number"
	}
	return msg
}

// rootNode returns the node of the whole command line, to which n belongs.
func rootNode(n *kong.Node) *kong.Node {
	for n.Parent != nil {
		n = n.Parent
	}
	return n
}

// commandsInGroups returns at most three commands, such as "caisson GROUP NAME", that groups of commands have under this name or
// alias, each followed by rest.
func commandsInGroups(app *kong.Node, name, rest string) (list []string) {
	if of := aliases[name]; of != "" {
		name = of
	}
	for _, group := range app.Children {
		if slices.ContainsFunc(group.Children, func(c *kong.Node) bool { return c.Name == name && !c.Hidden }) && len(list) < 3 {
			list = append(list, `"caisson `+group.Name+" "+name+rest+`"`)
		}
	}
	return list
}
