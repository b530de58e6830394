// Command caisson-worker contains only the part of Caisson that runs worker jobs without privileges. It is embedded in
// the caisson binary and executed from there: being small, it starts jobs faster than the whole binary would. It is not
// intended for direct use.
package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/caisson-dev/caisson/job/forge"
	"github.com/caisson-dev/caisson/job/gate/jobs"
	"github.com/caisson-dev/caisson/job/image"
	"github.com/caisson-dev/caisson/job/relay"
	"github.com/caisson-dev/caisson/job/relay/transport"
	"github.com/caisson-dev/caisson/job/sshproxy"
	"github.com/caisson-dev/caisson/job/worker"
)

func main() {
	if worker.IsWorker() {
		worker.Main(slices.Concat(image.Jobs(), jobs.All(), relay.Jobs(), transport.Jobs(), forge.Jobs(), sshproxy.Jobs())...)
	}
	fmt.Fprintln(os.Stderr, "caisson-worker: this program is a part of caisson; run caisson instead")
	os.Exit(2)
}
