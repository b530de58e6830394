// Command caisson-worker is the part of Caisson that runs jobs without privileges, and nothing else. It is embedded in the caisson
// binary and executed from there: being small, it starts jobs faster than the whole binary would. It has no use of its own.
package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/caisson-dev/caisson/forge"
	"github.com/caisson-dev/caisson/gate/tool"
	"github.com/caisson-dev/caisson/image"
	"github.com/caisson-dev/caisson/relay"
	"github.com/caisson-dev/caisson/relay/link"
	"github.com/caisson-dev/caisson/worker"
)

func main() {
	if worker.IsWorker() {
		// The same as in the caisson binary, which does this where it carries no lean one.
		worker.Main(slices.Concat(image.Jobs(), tool.Jobs(), relay.Jobs(), link.Jobs(), forge.Jobs())...)
	}
	fmt.Fprintln(os.Stderr, "caisson-worker: this program is a part of caisson; run caisson instead")
	os.Exit(2)
}
