package inside

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

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// execute is the role "run": it becomes the command, or with --detach starts it and leaves.
func execute(args []string) int {
	l, err := ParseLaunch(args)
	if err == nil {
		err = l.prepare()
	}
	if err != nil {
		complain(os.Stderr, errors.New(message(err)))
		return exitUsage
	}
	program, err := lookPath(l.Command[0], os.Getenv("PATH"))
	if err == nil && l.Detach {
		err = l.detach(program)
		if err == nil {
			return 0
		}
	} else if err == nil {
		err = syscall.Exec(program, l.Command, os.Environ()) // returns only if it cannot
	}
	io.WriteString(os.Stderr, "caisson-inside: "+l.Command[0]+": "+reason(err)+"\n")
	return exitCode(err)
}

// exitCode is what shells return for a program that cannot be started.
func exitCode(err error) int {
	switch {
	case errors.Is(err, errLog):
		return exitUsage
	case errors.Is(err, errNotInPath), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return exitNotFound
	}
	return exitNotExecutable
}

func reason(err error) string {
	if number, ok := errors.AsType[syscall.Errno](err); ok && !errors.Is(err, errLog) {
		return number.Error()
	}
	return err.Error()
}

var (
	errNotInPath = errors.New("command not found")
	errLog       = errors.New("cannot write its log")
)

// prepare makes this process what the command is to be: user first, so that everything else happens with its rights.
func (l *Launch) prepare() error {
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
		return caisson.Wrap(err, caisson.Invalid, "cannot change to directory %s: %s", l.Dir, reason(err))
	}
	os.Setenv("PWD", path.Clean(l.Dir))
	return nil
}

// assume makes id this process's identity. Who has that already needs no rights for it.
func (id *identity) assume() error {
	if err := syscall.Setgroups(id.groups); err != nil && !(os.Getuid() == id.uid && os.Getgid() == id.gid) {
		return caisson.Wrap(err, caisson.Denied, "cannot become user %d: %s", id.uid, reason(err))
	}
	if err := syscall.Setgid(id.gid); err != nil {
		return caisson.Wrap(err, caisson.Denied, "cannot become group %d: %s", id.gid, reason(err))
	}
	if err := syscall.Setuid(id.uid); err != nil {
		return caisson.Wrap(err, caisson.Denied, "cannot become user %d: %s", id.uid, reason(err))
	}
	return nil
}

// lookPath finds a program as execvp(3) does: without a slash in paths, and what cannot be executed only if nothing can.
func lookPath(name, paths string) (string, error) {
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	var denied error
	for dir := range strings.SplitSeq(paths, ":") {
		if dir == "" {
			dir = "."
		}
		candidate := dir + "/" + name
		err := executable(candidate)
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

// executable returns why a file cannot be executed.
func executable(name string) error {
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

// detach starts the command in a session of its own and prints its pid. It becomes an orphan, which init adopts.
func (l *Launch) detach(program string) error {
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
