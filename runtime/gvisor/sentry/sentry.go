// Package sentry implements gVisor's processes: the launcher that creates a sandbox, the sandbox ("boot"), its file server
// ("gofer") and their umount helper. Its binary (cmd/caisson-sentry), which contains only this package, is executed for each of
// these roles, which [IsRole] recognises by argv.
//
// The daemon never runs this code in its own process: gVisor opens sockets without CLOEXEC, so sandboxes that are created
// concurrently in one process would inherit each other's control sockets.
package sentry

import (
	"os"
	"path/filepath"
	"strings"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"

	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// IsRole reports whether this process was started in one of this package's roles.
func IsRole() bool {
	arg0 := filepath.Base(os.Args[0])
	if arg0 == protocol.LaunchArg0 || strings.HasPrefix(arg0, "runsc-") {
		return true
	}
	// gVisor re-executes itself as `/proc/self/exe umount` to detach its chroot's mounts.
	return os.Args[0] == "/proc/self/exe" && len(os.Args) > 1 && hasCommand(os.Args[1:], "umount")
}

// hasCommand reports whether the first argument that is not a flag is command.
func hasCommand(args []string, command string) bool {
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			return a == command
		}
	}
	return false
}

// Main runs the role that the arguments of this process name, and does not return.
func Main() {
	if filepath.Base(os.Args[0]) == protocol.LaunchArg0 {
		os.Exit(launch())
	}
	installHooks(os.Args[1:])
	// Of the commands of runsc, gVisor's program, only those that the sandbox's processes need are available.
	cli.Run(nil, map[util.SubCommand]string{
		new(sentrycmd.Boot):   "",
		new(sentrycmd.Umount): "",
		new(cmd.Gofer):        "",
	}, nil)
}
