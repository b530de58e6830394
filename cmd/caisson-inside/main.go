// Command caisson-inside is guestd, the program that Caisson runs within sandboxes: see package inside.
package main

import (
	"os"

	"github.com/caisson-dev/caisson/inside"
)

func main() {
	os.Exit(inside.Main(os.Args[1:]))
}
