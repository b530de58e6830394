// Command pack compresses the programs that the main program embeds.
//
//	pack DIR NAME=PROGRAM...
//
// For each program it writes the file NAME.zst in DIR, unless that file contains the program already. It removes all other files
// in DIR except README.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/internal/embedded/packed"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

// run executes the command with the arguments args.
func run(args []string) error {
	if len(args) == 0 {
		return errors.New("the directory is missing; usage: pack DIR NAME=PROGRAM")
	}
	var work errgroup.Group
	dir, wanted := args[0], map[string]bool{"README": true}
	for _, arg := range args[1:] {
		name, path, ok := strings.Cut(arg, "=")
		if !ok || name != filepath.Base(name) {
			return fmt.Errorf("%q is not of the form NAME=PROGRAM", arg)
		}
		name += ".zst"
		wanted[name] = true
		work.Go(func() error { return pack(path, filepath.Join(dir, name)) })
	}
	if err := work.Wait(); err != nil {
		return err
	}
	there, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range there {
		if !wanted[e.Name()] {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// pack writes the program at path in packed form to the file to, unless that file contains the program already.
func pack(path, to string) error {
	program, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if isPacked(to, program) {
		return nil
	}
	return durable.Write(to, func(f *os.File) error { return packed.Write(f, program) })
}

// isPacked reports whether the file at path contains program in packed form.
func isPacked(path string, program []byte) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	p, err := packed.Open(f)
	sum := sha256.Sum256(program)
	return err == nil && p.SHA256 == hex.EncodeToString(sum[:])
}
