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

// This file has the parts of guestd that serve SSH: "guestd session", "guestd sftp" and "guestd connect". They keep the user, the
// environment and the working directory with which the process was started.

// runSession implements "guestd session": it replaces this process by the user's login shell, or by a shell that executes the
// command in args.
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
	err := syscall.Exec(shell, argv, os.Environ()) // Exec returns only on failure
	io.WriteString(os.Stderr, "caisson-guestd: the shell "+shell+" of "+name+": "+errorText(err)+"\n")
	return exitCode(err)
}

// setAccount sets the environment variables that login programs set for the user uid, and returns the user's name and shell.
func setAccount(etc fs.FS, uid int) (name, shell string) {
	name, home := strconv.Itoa(uid), "/"
	err := scanFields(etc, "passwd", 7, func(f []string) bool {
		if id, ok := parseID(f[2]); !ok || id != uid {
			return true
		}
		name, home, shell = f[0], f[5], f[6]
		return false
	})
	if err != nil || shell == "" { // the user has no entry in passwd, or one without a shell
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

// runSFTP implements "guestd sftp": it serves SFTP on its standard streams.
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

// connectTimeout is how long "guestd connect" may take to establish a connection.
const connectTimeout = 30 * time.Second

// The first byte that "guestd connect" writes to its standard output.
const (
	ConnectOK     = 0 // the connection is established; the further output is data from it
	ConnectFailed = 1 // the connection has failed; the further output is the reason as text
)

// runConnect implements "guestd connect": it connects to an address, with the rights and the network of the sandbox. It copies
// its standard input to the connection, and the data from the connection to its standard output.
func runConnect(args []string) int {
	if len(args) != 2 || args[0] != "tcp" {
		io.WriteString(os.Stderr, usage)
		return exitUsage
	}
	conn, err := net.DialTimeout(args[0], args[1], connectTimeout)
	if err != nil {
		os.Stdout.Write(append([]byte{ConnectFailed}, refusalText(err)...))
		return exitFailure
	}
	if _, err := os.Stdout.Write([]byte{ConnectOK}); err != nil {
		return exitFailure
	}
	go func() {
		io.Copy(conn, os.Stdin) // errors are ignored: copying in the other direction fails too if the connection is lost
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			half.CloseWrite()
		}
	}()
	if _, err := io.Copy(os.Stdout, conn); err != nil {
		return exitFailure
	}
	return 0
}

// refusalText returns a short text for the error with which a connection failed.
func refusalText(err error) string {
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
