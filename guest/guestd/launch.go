package guestd

import (
	"strings"

	"github.com/caisson-dev/caisson"
)

// A RunArgs has the arguments of "guestd run": a command, and how to start it.
type RunArgs struct {
	User    string   // name or uid, with an optional ":" and group name or gid; "" means the user of guestd
	Dir     string   // working directory; "" means that of guestd
	Log     string   // if Detach is set: the file to which output is appended; "" discards the output
	Detach  bool     // start the command in a new session of processes, and do not wait for its end
	Command []string // program and arguments
}

// ParseLaunch parses the arguments of "guestd run". Returns Invalid if they are malformed.
func ParseLaunch(args []string) (*RunArgs, error) {
	var l RunArgs
	texts := map[string]*string{"--user": &l.User, "--cwd": &l.Dir, "--log": &l.Log}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, value, attached := strings.Cut(args[0], "=")
		text := texts[name]
		args = args[1:]
		if name == "--" && !attached {
			break
		}
		switch {
		case name == "--detach" && !attached:
			l.Detach = true
		case text == nil:
			return nil, caisson.Errorf(caisson.Invalid, "run: no option %.40q", name)
		case attached:
			*text = value
		case len(args) == 0:
			return nil, caisson.Errorf(caisson.Invalid, "run: %s needs a value", name)
		default:
			*text, args = args[0], args[1:]
		}
	}
	l.Command = args
	switch {
	case len(l.Command) == 0 || l.Command[0] == "":
		return nil, caisson.Errorf(caisson.Invalid, "run: no command given")
	case l.Log != "" && !l.Detach:
		return nil, caisson.Errorf(caisson.Invalid, "run: --log is for --detach only")
	}
	return &l, nil
}
