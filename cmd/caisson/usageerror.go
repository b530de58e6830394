package main

import (
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

// usagef returns a usageError that a command, and not kong, has found.
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

// The messages of kong that are replaced.
var (
	unknownFlag     = regexp.MustCompile(`^unknown flag (-\S+?)(?:, did you mean .*)?$`)
	unknownArgument = regexp.MustCompile(`^unexpected argument (\S+)$`)
	flagForValue    = regexp.MustCompile(`^--(\S+): expected .* value but got "(.*)" \(.* flag.*\).*$`)
	noWholeNumber   = regexp.MustCompile(`^(.*): expected a valid \d+ bit u?int but got (".*")$`)
	noNumber        = regexp.MustCompile(`^(.*): expected a float but got (".*") .*$`)
)

// otherFlags are flags of programs like this one, and what has their place here.
var otherFlags = map[string]string{
	"-v": "mount a directory with --mount SRC:DST[:rw]", "-p": "reach ports with caisson port-forward, caisson open or caisson route add",
	"--publish": "reach ports with caisson port-forward, caisson open or caisson route add", "--network": "say what it may reach with --allow and --deny",
	"--net": "say what it may reach with --allow and --deny", "--all": "give the names, for example with $(caisson … ls -q)",
	"--cwd": "work in a directory with -C or -w", "--budget": "limit the cost of a run with --max-cost, and of many with caisson budget set",
	"--api-key": "store the key with caisson credential set",
}

// plainUsage returns the text of a message of kong's with what can be done. node is the command in which the error was found.
func plainUsage(msg string, node *kong.Node) string {
	if m := unknownFlag.FindStringSubmatch(msg); m != nil {
		if instead := otherFlags[m[1]]; instead != "" {
			return "unknown flag " + m[1] + "; " + instead
		}
		if len(m[1]) == len("-x") { // kong finds all flags of one letter alike
			return "unknown flag " + m[1]
		}
	}
	if m := unknownArgument.FindStringSubmatch(msg); m != nil && node.Type == kong.ApplicationNode {
		if list := groupsWith(node, m[1]); len(list) > 0 {
			return msg + ", did you mean " + strings.Join(list, " or ") + "?"
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

// groupsWith returns the commands that are called name, or have that alias, one level below app, at most three.
func groupsWith(app *kong.Node, name string) (list []string) {
	if of := aliases[name]; of != "" {
		name = of
	}
	for _, group := range app.Children {
		if slices.ContainsFunc(group.Children, func(c *kong.Node) bool { return c.Name == name && !c.Hidden }) && len(list) < 3 {
			list = append(list, `"caisson `+group.Name+" "+name+`"`)
		}
	}
	return list
}
