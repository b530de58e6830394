package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson/internal/embedded/packed"
)

// TestRun tests that the directory has the programs and nothing else, and that a packed program is not written again while its program is the
// same.
func TestRun(t *testing.T) {
	t.Parallel()
	dir, program := t.TempDir(), filepath.Join(t.TempDir(), "program")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(dir, "README"), "kept")
	write(filepath.Join(dir, "sentry"), "of an earlier build")
	inode := func() os.FileInfo {
		t.Helper()
		info, err := os.Stat(filepath.Join(dir, "guestd.zst"))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	var first os.FileInfo
	for i, text := range []string{"one", "one", "two"} {
		write(program, text)
		if err := run([]string{dir, "guestd=" + program}); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(filepath.Join(dir, "guestd.zst"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := packed.Open(f)
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if err := p.Unpack(&got); err != nil || got.String() != text {
			t.Errorf("the program is %q, not %q: %v", got.String(), text, err)
		}
		f.Close()
		if i == 0 {
			first = inode()
		} else if os.SameFile(first, inode()) != (i == 1) {
			t.Errorf("after build %d the file was written: %t", i, i == 1)
		}
	}
	if list, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(list) != 2 {
		t.Errorf("the directory has %q, %v", list, err)
	}
	for _, args := range [][]string{nil, {dir, "guestd"}, {dir, "../guestd=" + program}, {dir, "guestd=" + program + "-none"}} {
		if err := run(args); err == nil {
			t.Errorf("pack %q succeeded", args)
		}
	}
}
