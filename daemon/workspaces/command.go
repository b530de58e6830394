package workspaces

import (
	"cmp"
	"context"
	"regexp"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// A Command is a check that the administrator configures: a program that must exit with status 0 in a sandbox that contains the
// directory as it would be after an apply. The changes that the program makes to files are discarded, and it has no network
// access.
type Command struct {
	Name    string   `yaml:"name" json:"name"`             // in receipts: 1 to 40 letters, digits, dots, dashes and underscores
	Command []string `yaml:"command" json:"command"`       // the program, looked up in PATH, and its arguments
	Image   string   `yaml:"image" json:"image,omitempty"` // image of the sandbox; "" means the host's own programs
	// Time is the time limit, after which the program is killed and nothing is applied; 0 means 10 minutes, maximum 1 hour.
	Time caisson.Duration `yaml:"time" json:"time,omitempty"`
}

// Limits of the commands that check changes.
const (
	maxCommands        = 20               // maximum number of commands in the settings
	defaultCommandTime = 10 * time.Minute // time limit of a command whose Time is 0
	maxCommandTime     = time.Hour        // longest time limit of a command
)

var commandName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$`) // valid names of commands

// ValidateCommands returns an Invalid error if a list of commands is invalid.
func ValidateCommands(list []Command) error {
	if len(list) > maxCommands {
		return caisson.Invalidf("commands", "has more than %d", maxCommands)
	}
	names := map[string]bool{}
	for _, c := range list {
		switch {
		case !commandName.MatchString(c.Name):
			return caisson.Invalidf("commands.name", "%.60q is not 1 to 40 letters, digits, dots, dashes and underscores", c.Name)
		case names[c.Name]:
			return caisson.Invalidf("commands.name", "%s occurs twice", c.Name)
		case len(c.Command) == 0 || c.Command[0] == "":
			return caisson.Invalidf("commands.command", "of %s is empty; list the program and its arguments", c.Name)
		case strings.ContainsRune(strings.Join(c.Command, ""), 0):
			return caisson.Invalidf("commands.command", "of %s has a NUL character", c.Name)
		case c.Time < 0 || time.Duration(c.Time) > maxCommandTime:
			return caisson.Invalidf("commands.time", "of %s is not between 0 and %v", c.Name, maxCommandTime)
		}
		names[c.Name] = true
	}
	return nil
}

// timeLimit returns the time limit of the command.
func (c Command) timeLimit() time.Duration {
	return cmp.Or(time.Duration(c.Time), defaultCommandTime)
}

// checkName returns the name of the check that the command makes, for lists of checks.
func (c Command) checkName() string { return checkCommand + " " + c.Name }

// checkCommand is the prefix of the names of checks that are commands.
const checkCommand = "command"

// Sandboxes contains what this core requires of package sandboxes, to run commands and to read which processes changed files.
type Sandboxes struct {
	Lifecycle Lifecycle // creates and removes sandboxes
	// Exec starts a process in the sandbox with the id or name ref; it is the method of [caisson.Processes].
	Exec func(ctx context.Context, ref string, req caisson.ExecRequest) (caisson.Process, error)
}

// Lifecycle creates and removes sandboxes, and reads which processes changed files. All methods but Writers are those of
// [caisson.Sandboxes].
type Lifecycle interface {
	// Writers returns which process of a sandbox was the last to change each file in its workspace, as far as that is recorded;
	// nil if nothing is recorded. Returns NotFound if there is no such sandbox.
	Writers(ctx context.Context, sandbox caisson.ID) (*caisson.Writers, error)
	Create(ctx context.Context, req caisson.CreateRequest) (*caisson.Sandbox, error)
	Remove(ctx context.Context, ref string) error
}
