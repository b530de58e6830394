package sqlite

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// writerEnv makes the test binary a program that writes to the store at the given path until it is killed.
const writerEnv = "CAISSON_TEST_SQLITE_WRITER"

func TestMain(m *testing.M) {
	if path := os.Getenv(writerEnv); path != "" {
		fmt.Fprintln(os.Stderr, writeUntilKilled(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeUntilKilled writes from several goroutines and prints acknowledged writes: an ID once the sandbox is stored, and
// "ID running" once its update is stored.
func writeUntilKilled(path string) error {
	ctx := context.Background()
	s, err := Open(ctx, testConfig(path))
	if err != nil {
		return err
	}
	errs := make(chan error)
	for range 4 {
		go func() {
			for {
				box := sample("local", "")
				if err := s.Sandboxes().Insert(ctx, box); err != nil {
					errs <- err
					return
				}
				fmt.Println(box.ID)
				_, err := s.Sandboxes().Update(ctx, caisson.In("local"), string(box.ID), func(b *caisson.Sandbox) error {
					b.State = caisson.Running
					return nil
				})
				if err != nil {
					errs <- err
					return
				}
				fmt.Println(box.ID, caisson.Running)
			}
		}()
	}
	return <-errs
}

// TestPromise7KillLosesNothing repeatedly kills a process while it is writing, and tests that acknowledged writes
// exist.
func TestPromise7KillLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "caisson.db")
	acknowledged := map[string]string{}
	for round := range 5 {
		killWriter(t, path, 100+round*77, acknowledged)
		s := openTest(t, path)
		for id, state := range acknowledged {
			box, err := s.Sandboxes().Get(t.Context(), caisson.In("local"), id)
			if err != nil {
				t.Fatalf("round %d: acknowledged %s: %v", round, id, err)
			}
			if state != "" && string(box.State) != state {
				t.Errorf("round %d: %s is %s, acknowledged was %s", round, id, box.State, state)
			}
		}
		must(t, s.Close())
	}
}

// killWriter runs a writer, kills it after it has acknowledged n writes, and adds all acknowledged writes.
func killWriter(t *testing.T, path string, n int, acknowledged map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), writerEnv+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	seen := 0
	for ; lines.Scan(); seen++ {
		id, state, _ := strings.Cut(lines.Text(), " ")
		if acknowledged[id] == "" {
			acknowledged[id] = state
		}
		if seen == n {
			must(t, cmd.Process.Kill())
		}
	}
	if err := cmd.Wait(); seen < n {
		t.Fatalf("the writer ended by itself after %d writes: %v", seen, err)
	}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func logTo(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
