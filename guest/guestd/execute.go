package guestd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/caisson-dev/caisson"
)

// defaultPath is the value of PATH for programs whose environment has none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// runCommand implements "guestd run": it replaces this process by the command, or with --detach starts it in the background.
func runCommand(args []string) int {
	l, err := ParseLaunch(args)
	if err == nil {
		err = l.prepare()
	}
	if err != nil {
		printError(os.Stderr, errors.New(message(err)))
		return exitUsage
	}
	program, err := lookPath(l.Command[0], os.Getenv("PATH"))
	if err == nil && l.Detach {
		err = l.detach(program)
		if err == nil {
			return 0
		}
	} else if err == nil {
		err = syscall.Exec(program, l.Command, os.Environ()) // returns only on failure
	}
	io.WriteString(os.Stderr, "caisson-guestd: "+l.Command[0]+": "+errorText(err)+"\n")
	return exitCode(err)
}

// exitCode returns the exit code for a command that cannot be started, the same as that of shells.
func exitCode(err error) int {
	switch {
	case errors.Is(err, errLog):
		return exitUsage
	case errors.Is(err, errNotInPath), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return exitNotFound
	}
	return exitNotExecutable
}

// errorText returns the text of the system call's error in err without the operation and the path, or else the text of err.
func errorText(err error) string {
	if number, ok := errors.AsType[syscall.Errno](err); ok && !errors.Is(err, errLog) {
		return number.Error()
	}
	return err.Error()
}

// Errors for a command that cannot be started.
var (
	errNotInPath = errors.New("command not found")
	errLog       = errors.New("cannot write its log")
)

// prepare sets the user, the environment and the working directory of this process for the command. It sets the user first, so
// that the directory is accessed with the user's permissions.
func (l *RunArgs) prepare() error {
	if l.User != "" {
		id, err := resolveUser(os.DirFS("/etc"), l.User)
		if err != nil {
			return err
		}
		if err := id.assume(); err != nil {
			return err
		}
		if _, ok := os.LookupEnv("HOME"); !ok {
			os.Setenv("HOME", id.home)
		}
	}
	if _, ok := os.LookupEnv("HOME"); !ok {
		if id, err := resolveUser(os.DirFS("/etc"), strconv.Itoa(os.Getuid())); err == nil {
			os.Setenv("HOME", id.home)
		}
	}
	if _, ok := os.LookupEnv("PATH"); !ok {
		os.Setenv("PATH", defaultPath)
	}
	if l.Dir == "" {
		return nil
	}
	if err := os.Chdir(l.Dir); err != nil {
		return caisson.Wrap(err, caisson.Invalid, "cannot change to directory %s: %s", l.Dir, errorText(err))
	}
	os.Setenv("PWD", path.Clean(l.Dir))
	return nil
}

// assume sets user and groups of this process to id. No privileges are needed if the process has that user and group already.
func (id *identity) assume() error {
	if err := syscall.Setgroups(id.groups); err != nil && !(os.Getuid() == id.uid && os.Getgid() == id.gid) {
		return caisson.Wrap(err, caisson.Denied, "cannot become user %d: %s", id.uid, errorText(err))
	}
	if err := syscall.Setgid(id.gid); err != nil {
		return caisson.Wrap(err, caisson.Denied, "cannot become group %d: %s", id.gid, errorText(err))
	}
	if err := syscall.Setuid(id.uid); err != nil {
		return caisson.Wrap(err, caisson.Denied, "cannot become user %d: %s", id.uid, errorText(err))
	}
	return nil
}

// lookPath returns the path of a program, and looks up a name without a slash in the directories of paths, as execvp(3) does. It
// returns EACCES if there are files with the name but none of them can be executed.
func lookPath(name, paths string) (string, error) {
	if strings.Contains(name, "/") {
		return name, checkExecutable(name)
	}
	var denied error
	for dir := range strings.SplitSeq(paths, ":") {
		if dir == "" {
			dir = "."
		}
		candidate := dir + "/" + name
		err := checkExecutable(candidate)
		if err == nil {
			return candidate, nil
		}
		if errors.Is(err, syscall.EACCES) && denied == nil {
			if _, err := os.Stat(candidate); err == nil {
				denied = syscall.EACCES
			}
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", errNotInPath
}

// checkExecutable returns an error if this process cannot execute the file at the path name.
func checkExecutable(name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	const anybody = 0o111
	if info.IsDir() || info.Mode()&anybody == 0 {
		return syscall.EACCES
	}
	const xOK = 1
	return syscall.Access(name, xOK)
}

// detach starts the command in a new session of processes and prints its pid. The command becomes a child of init when this
// process exits.
func (l *RunArgs) detach(program string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", errLog, err)
	}
	log := null
	if l.Log != "" {
		if log, err = os.OpenFile(l.Log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
			return fmt.Errorf("%w: %w", errLog, err)
		}
	}
	p, err := os.StartProcess(program, l.Command, &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{null, log, log}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return err
	}
	os.Stdout.WriteString(strconv.Itoa(p.Pid) + "\n")
	return p.Release()
}
