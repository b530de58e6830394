// Command caisson-guestd is guestd, the program that Caisson runs within sandboxes: see package guestd.
package main

import (
	"os"

	"github.com/caisson-dev/caisson/guest/guestd"
)

func main() {
	os.Exit(guestd.Main(os.Args[1:]))
}
