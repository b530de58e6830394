// Command runsc is gVisor's own command line and nothing else, of the same version and linked as Caisson's lean binary is:
// what Caisson is measured against.
//
// It has the commands that the benchmarks use. gVisor's maincli has more, and with them an embedded helper of 47 MB that a
// baseline should not have to load.
package main

import (
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

func main() {
	cli.Run(nil, map[util.SubCommand]string{
		new(cmd.Checkpoint): "", new(cmd.Create): "", new(cmd.Delete): "", new(cmd.Exec): "", new(cmd.Kill): "",
		new(cmd.List): "", new(cmd.Pause): "", new(cmd.Restore): "", new(cmd.Resume): "", new(cmd.Run): "",
		new(cmd.Start): "", new(cmd.State): "", new(cmd.Wait): "",
		new(sentrycmd.Boot): "", new(cmd.Gofer): "", new(sentrycmd.Umount): "",
	}, nil)
}
