// Command caisson-agent is what speaks with agents inside sandboxes (see package agent/drive). It is in every sandbox, whatever the
// image, so it needs nothing of one: it is static, small and quick to start.
package main

import (
	"fmt"
	"os"

	"github.com/caisson-dev/caisson/agent/drive"
)

const usage = `usage: caisson-agent drive    read a task from standard input and let an agent do it
`

func main() {
	if len(os.Args) > 1 && os.Args[1] == "drive" {
		os.Exit(drive.Main(os.Args[2:], os.Stdin, os.Stdout, drive.Drivers()))
	}
	fmt.Fprint(os.Stderr, usage)
	os.Exit(2)
}
