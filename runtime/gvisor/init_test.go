package gvisor

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestInitProgram runs the init program on the host.
func TestInitProgram(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(path, initProgram(), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := elf.NewFile(bytes.NewReader(initProgram())); err != nil {
		t.Fatal("not an ELF file:", err)
	}
	if err := exec.Command(path, "-").Run(); err != nil {
		t.Errorf("probe: %v", err)
	}
	out := filepath.Join(t.TempDir(), "out")
	for _, args := range [][]string{nil, {"/bin/sh", "-c", "echo $VAR $1 > " + out, "sh", "arg"}} {
		cmd := exec.Command(path, args...)
		cmd.Env = []string{"VAR=value"}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if args != nil {
			var got []byte
			for deadline := time.Now().Add(10 * time.Second); string(got) != "value arg\n"; got, _ = os.ReadFile(out) {
				if time.Now().After(deadline) {
					t.Fatalf("child wrote %q", got)
				}
			}
		}
		// It must still be sleeping after its child has exited.
		if pid, err := unix.Wait4(cmd.Process.Pid, nil, unix.WNOHANG, nil); pid != 0 || err != nil {
			t.Errorf("init with %q ended: %v %v", args, pid, err)
		}
		cmd.Process.Kill()
		var ee *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &ee) || ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("init ended with %v", err)
		}
	}
}
