// Command caisson-agent drives agents inside sandboxes (see package guest/drive), and contains the built-in coding
// agent (guest/coder). It is available in every sandbox, for any image, so it does not depend on the image: it is
// static, small and starts quickly.
package main

import (
	"fmt"
	"os"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/coder"
	"github.com/caisson-dev/caisson/guest/drive"
	openclaw "github.com/caisson-dev/caisson/guest/openclaw/driver"
	"github.com/caisson-dev/caisson/guest/openclaw/install"
)

// usage is the text that is printed unless the first argument is the name of a role: drive, code, install or await.
const usage = `usage: caisson-agent drive    read a task from standard input and run it with an agent
       caisson-agent code     run the built-in coding agent
       caisson-agent install  install packages from a lock file
       caisson-agent await    wait until a URL answers with 200, and then become another program
`

func main() {
	role := ""
	if len(os.Args) > 1 {
		role = os.Args[1]
	}
	switch role {
	case "drive":
		drivers := drive.Drivers()
		drivers[caisson.DriverOpenClaw] = openclaw.OpenClaw{}
		os.Exit(drive.Main(os.Args[2:], os.Stdin, os.Stdout, drivers))
	case "install":
		os.Exit(install.Main(os.Args[2:]))
	case "await":
		fmt.Fprintln(os.Stderr, "caisson-agent: "+drive.ExecWhenReady(os.Args[2:]).Error())
		os.Exit(1)
	case "code":
		os.Exit(coder.Main(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	fmt.Fprint(os.Stderr, usage)
	os.Exit(2)
}
