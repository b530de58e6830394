// Command caisson-sentry contains only the part of Caisson that runs gVisor's processes. It is embedded in the caisson
// binary and executed from there: being small, it starts sandboxes faster than the whole binary would. It is not
// intended for direct use.
package main

import (
	"fmt"
	"os"

	"github.com/caisson-dev/caisson/runtime/gvisor/sentry"
)

func main() {
	if sentry.IsRole() {
		sentry.Main()
	}
	fmt.Fprintln(os.Stderr, "caisson-sentry: this program is a part of caisson; run caisson instead")
	os.Exit(2)
}
