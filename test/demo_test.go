package test_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// TestDemo tests that the demonstration works without any account in less than two minutes and leaves nothing behind.
func TestDemo(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	if _, err := exec.LookPath("bash"); err != nil {
		testneed.Skip(t, "bash", err.Error())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "../demo/demo.sh", h.bin)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + h.dir, "TMPDIR=" + h.dir, "LANG=C.UTF-8"}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // The demonstration cleans up on this signal.
	cmd.WaitDelay = settle
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The data directory, while it exists.
	var instance []string
	own := *h
	poll.Until(t, hang, func() bool {
		instance, _ = filepath.Glob(filepath.Join(h.dir, "caisson-demo.*", "data", "instance")) // The pattern is valid.
		if len(instance) == 1 {
			own.data = filepath.Dir(instance[0])
		}
		return len(instance) == 1 && !strings.HasSuffix(own.cgroupRoots()[0], "/") // The file has been written completely.
	})
	roots := own.cgroupRoots()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v (%v):\n%s", err, ctx.Err(), out.String())
	}
	at := 0
	for _, want := range []string{
		"FAIL: 4 is IIII", "now passes", "+4 IV", "no key is inside\nkept:", "no way out", "kept: 169.254.169.254:80", "no rule allows it",
		"the host is untouched\nkept:", "All kept",
	} {
		i := strings.Index(out.String()[at:], want)
		if i < 0 {
			t.Fatalf("%q is not where it should be:\n%s", want, out.String())
		}
		at += i
	}
	var left []string
	deadline := time.Now().Add(settle)
	poll.Until(t, 2*settle, func() bool {
		left = own.mounts("self")
		for _, args := range processes(func(args string) bool { return strings.Contains(args, own.data) }) {
			left = append(left, args)
		}
		for _, root := range roots {
			groups, _ := filepath.Glob(root + "/*/") // The pattern is valid.
			left = append(left, groups...)
		}
		dirs, _ := filepath.Glob(filepath.Join(h.dir, "caisson-demo.*")) // The pattern is valid.
		left = append(left, dirs...)
		return len(left) == 0 || time.Now().After(deadline)
	})
	if len(left) > 0 {
		t.Errorf("left on the host: %q", slices.Sorted(slices.Values(left)))
	}
	if _, err := os.Stat(filepath.Join(h.dir, "bin", "caisson")); err != nil {
		t.Errorf("what is beside it is gone: %v", err)
	}
}
