package guestd

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pkg/sftp"

	"github.com/caisson-dev/caisson"
)

// Roles for SSH. They run with the user, environment and directory that the process was started with.

// runSession implements the role "session": it replaces itself by the user's login shell, or by that shell with a command.
func runSession(args []string) int {
	if len(args) > 1 {
		io.WriteString(os.Stderr, usage)
		return exitUsage
	}
	name, shell := setAccount(os.DirFS("/etc"), os.Getuid())
	argv := []string{"-" + shell[strings.LastIndex(shell, "/")+1:]}
	if len(args) == 1 {
		argv = []string{argv[0][1:], "-c", args[0]}
	}
	err := syscall.Exec(shell, argv, os.Environ()) // returns only on failure
	io.WriteString(os.Stderr, "caisson-guestd: the shell "+shell+" of "+name+": "+errorText(err)+"\n")
	return exitCode(err)
}

// setAccount sets the environment variables that login programs set, and returns the user's name and shell.
func setAccount(etc fs.FS, uid int) (name, shell string) {
	name, home := strconv.Itoa(uid), "/"
	err := scanFields(etc, "passwd", 7, func(f []string) bool {
		if id, ok := parseID(f[2]); !ok || id != uid {
			return true
		}
		name, home, shell = f[0], f[5], f[6]
		return false
	})
	if err != nil || shell == "" { // no entry, or one without a shell
		shell = "/bin/sh"
		if checkExecutable("/bin/bash") == nil {
			shell = "/bin/bash"
		}
	}
	for key, value := range map[string]string{"HOME": home, "PATH": defaultPath} {
		if _, ok := os.LookupEnv(key); !ok {
			os.Setenv(key, value)
		}
	}
	for key, value := range map[string]string{"USER": name, "LOGNAME": name, "SHELL": shell} {
		os.Setenv(key, value)
	}
	return name, shell
}

// runSFTP implements the role "sftp": it serves the subsystem of that name on its standard streams.
func runSFTP() int {
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	s, err := sftp.NewServer(struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout}, sftp.WithServerWorkingDirectory(dir))
	if err == nil {
		err = s.Serve()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		printError(os.Stderr, err)
		return exitFailure
	}
	return 0
}

// connectTimeout is how long a connection may take.
const connectTimeout = 30 * time.Second

// The first byte that the role "connect" writes.
const (
	Connected = 0 // the bytes that follow come from the connection
	Refused   = 1 // the text that follows is the reason
)

// runConnect implements the role "connect": it connects to an address, with the rights and the network of the sandbox, and copies
// its standard streams to and from the connection.
func runConnect(args []string) int {
	if len(args) != 2 || args[0] != "tcp" {
		io.WriteString(os.Stderr, usage)
		return exitUsage
	}
	conn, err := net.DialTimeout(args[0], args[1], connectTimeout)
	if err != nil {
		os.Stdout.Write(append([]byte{Refused}, refusal(err)...))
		return exitFailure
	}
	if _, err := os.Stdout.Write([]byte{Connected}); err != nil {
		return exitFailure
	}
	go func() {
		io.Copy(conn, os.Stdin) // an error ends the connection, which the other direction notices
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			half.CloseWrite()
		}
	}()
	if _, err := io.Copy(os.Stdout, conn); err != nil {
		return exitFailure
	}
	return 0
}

// refusal returns the reason why a connection failed.
func refusal(err error) string {
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number.Error()
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return "timed out"
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "the name is unknown, or no rule of the sandbox's policy allows it"
	}
	return caisson.MessageOf(err)
}
