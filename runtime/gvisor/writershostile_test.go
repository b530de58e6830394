package gvisor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor/lastwrite"
)

// hostileSandbox returns a sandbox whose simulated main process calls do with the descriptor of each call and then sends reply.
func hostileSandbox(t *testing.T, do func(*os.File), reply string) *sandbox {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				data, oob := make([]byte, 4096), make([]byte, 64)
				_, n, _, _, err := c.ReadMsgUnix(data, oob)
				messages, err2 := unix.ParseSocketControlMessage(oob[:n])
				if errors.Join(err, err2) != nil || len(messages) != 1 {
					return
				}
				if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
					f := os.NewFile(uintptr(fds[0]), "told")
					do(f)
					c.Write([]byte(reply))
				}
			}()
		}
	}()
	s := &sandbox{control: &controlClient{socket: socket}, done: make(chan struct{}), state: state{Recorded: []string{"/workspace"}}}
	t.Cleanup(s.control.close)
	return s
}

// TestHostileWriters checks that malicious replies of a sandbox's main process to Writers use limited time and memory.
func TestHostileWriters(t *testing.T) {
	t.Parallel()
	var table lastwrite.Table
	table.Wrote("a", lastwrite.Process{PID: 1, Command: "\x1b[31mred"})
	const ok = `{"success":true}`
	says := func(b []byte) func(*os.File) { return func(f *os.File) { f.Write(b); f.Close() } }
	var kept *os.File
	defer func() { kept.Close() }()
	for _, c := range []struct {
		name, reply string
		do          func(*os.File)
		works       bool
	}{
		{"the truth", ok, says(table.Encode()), true},
		{"nothing", ok, says(nil), false},
		{"half of it", ok, says(table.Encode()[:20]), false},
		{"more", ok, says(append(table.Encode(), 'x')), false},
		{"without end", ok, func(f *os.File) {
			for _, err := f.WriteString(strings.Repeat("x", 1<<20)); err == nil; _, err = f.WriteString(strings.Repeat("x", 1<<20)) {
			}
			f.Close()
		}, false},
		{"and keeps the pipe", ok, func(f *os.File) { kept = f; f.Write(table.Encode()) }, false},
		{"an error", `{"success":false,"err":"no"}`, says(table.Encode()), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := hostileSandbox(t, c.do, c.reply)
			r := sinkQueries{func(caisson.ID) (*sandbox, error) { return s, nil }}
			began := time.Now()
			got, err := r.Writers(t.Context(), "sb-x", "/workspace")
			if (err == nil) != c.works || time.Since(began) > 10*time.Second {
				t.Errorf("%+v, %v after %v", got, err, time.Since(began))
			}
			if c.works && (len(got.List) != 1 || got.List[0].Command != `\u001b[31mred`) {
				t.Errorf("%+v", got)
			}
		})
	}
	hang := make(chan struct{})
	defer close(hang)
	s := hostileSandbox(t, func(f *os.File) { <-hang; f.Close() }, ok)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	q := sinkQueries{func(caisson.ID) (*sandbox, error) { return s, nil }}
	if _, err := q.Writers(ctx, "sb-x", "/workspace"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("of one that hangs: %v", err)
	}
}

// TestHostileSharing checks the same for SharedRandomness.
func TestHostileSharing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, said string
		want       []string
		works      bool
	}{
		{"nothing", "", nil, true},
		{"names", "bun\njava", []string{"bun", "java"}, true},
		{"what deceives", "\x1b[31mred\xff", []string{`\x1b[31mred\xff`}, true},
		{"too many", strings.Repeat("x\n", 17), nil, false},
		{"too much", strings.Repeat("x", 1<<16), nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := hostileSandbox(t, func(f *os.File) { f.WriteString(c.said); f.Close() }, `{"success":true}`)
			names, err := sinkQueries{func(caisson.ID) (*sandbox, error) { return s, nil }}.SharedRandomness(t.Context(), "sb-x")
			if (err == nil) != c.works || !slices.Equal(names, c.want) {
				t.Errorf("%q, %v", names, err)
			}
		})
	}
}
