// Command runsc is gVisor's own command line, of the same version and linked in the same way as Caisson's small binary.
// The benchmarks compare Caisson with it.
//
// It has only the commands that the benchmarks use. gVisor's maincli has more, and an embedded helper of 47 MB. The
// comparison would be unfair if runsc had to load that.
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
