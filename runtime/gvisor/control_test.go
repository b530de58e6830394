package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// serve replies to calls like a sandbox, with the result of answer, until the test ends.
func serve(t *testing.T, answer func(method string) string) *controlClient {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for d := json.NewDecoder(c); ; {
					var req struct{ Method string }
					if d.Decode(&req) != nil {
						return
					}
					reply := answer(req.Method)
					if reply == "" {
						return
					}
					if _, err := c.Write([]byte(reply)); err != nil {
						return
					}
				}
			}()
		}
	}()
	c := &controlClient{socket: socket}
	t.Cleanup(c.close)
	return c
}

// TestHostileControl checks malformed replies of a sandbox.
func TestHostileControl(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]string{
		"nothing":     "",
		"no JSON":     "hello\n",
		"no object":   "[1]\n",
		"wrong type":  `{"success":true,"result":"text"}`,
		"deep":        strings.Repeat("[", 100_000),
		"endless":     `{"success":true,"result":[` + strings.Repeat("1,", maxControlReply/2) + `1]}`,
		"its own end": `{"success":true,"result":[1`,
	} {
		c := serve(t, func(string) string { return reply })
		ctx, cancel := context.WithCancel(t.Context())
		if name == "its own end" {
			cancel() // the rest of the reply is never sent
		}
		var result []int
		if err := c.call(ctx, "m", nil, &result); err == nil {
			t.Errorf("%s: no error, and %d results", name, len(result))
		}
		cancel()
	}
	c := serve(t, func(string) string { return `{"success":false,"err":"` + strings.Repeat("x", 10_000) + `"}` })
	var remote remoteError
	if err := c.call(t.Context(), "m", nil, nil); !errors.As(err, &remote) || len(err.Error()) > 600 {
		t.Errorf("a long complaint is an error of %d bytes, %.40v", len(err.Error()), err)
	}
}

func TestControlCancelled(t *testing.T) {
	t.Parallel()
	hang, called := make(chan struct{}), make(chan struct{})
	c := serve(t, func(string) string { close(called); <-hang; return "" })
	defer close(hang)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	go func() { <-called; cancel(why) }()
	if err := c.call(ctx, "m", nil, nil); !errors.Is(err, why) {
		t.Errorf("a cancelled call returned %v", err)
	}
	if len(c.idle) > 0 {
		t.Error("its connection was kept")
	}
}

// TestControlGone checks calls to a socket without a server.
func TestControlGone(t *testing.T) {
	t.Parallel()
	c := &controlClient{socket: filepath.Join(t.TempDir(), "socket")}
	if err := c.call(t.Context(), "m", nil, nil); caisson.KindOf(err) != caisson.Conflict {
		t.Errorf("without a socket: %v", err)
	}
	c = serve(t, func(string) string { return `{"success":true}` })
	for range 2 {
		if err := c.call(t.Context(), "m", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.idle) != 1 {
		t.Errorf("%d connections were kept after two calls, want 1", len(c.idle))
	}
	c.close()
	if err := c.call(t.Context(), "m", nil, nil); err != nil || len(c.idle) > 0 {
		t.Errorf("after close: %v, and %d connections were kept", err, len(c.idle))
	}
}

// TestControlBacklog makes many concurrent calls to a server with a short listen backlog.
func TestControlBacklog(t *testing.T) {
	t.Parallel()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "socket")
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: socket}), unix.Listen(fd, 1)); err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "listener")
	l, err := net.FileListener(file)
	file.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var req any
				if json.NewDecoder(c).Decode(&req) == nil {
					_, _ = c.Write([]byte(`{"success":true}`))
				}
			}()
		}
	}()
	c := &controlClient{socket: socket}
	var g errgroup.Group
	for range 100 {
		g.Go(func() error {
			err := c.call(t.Context(), "m", nil, nil)
			if caisson.KindOf(err) == caisson.Conflict { // this server replies only once on each connection
				err = nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// TestTerminalSignals writes control characters to a terminal of the host.
func TestTerminalSignals(t *testing.T) {
	t.Parallel()
	master, slave, err := openPTY(24, 80)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer slave.Close()
	in := &ttyInput{f: master}
	for _, c := range []struct {
		typed string
		want  []unix.Signal
	}{
		{"text\r", nil},
		{"\x03", []unix.Signal{unix.SIGINT}},
		{"a\x1cb\x1a", []unix.Signal{unix.SIGQUIT, unix.SIGTSTP}},
		{"\x16\x03", nil},
		{"\x16", nil},
		{"\x03\x03", []unix.Signal{unix.SIGINT}},
		{"\x00\x04", nil},
	} {
		got := in.signals([]byte(c.typed))
		if len(got) != len(c.want) {
			t.Errorf("%q sends %v, want %v", c.typed, got, c.want)
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%q sends %v, want %v", c.typed, got, c.want)
			}
		}
	}
	if err := onDescriptor(slave, func(fd int) error {
		tio, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err == nil {
			tio.Lflag &^= unix.ISIG
			err = unix.IoctlSetTermios(fd, unix.TCSETS, tio)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got := in.signals([]byte("\x03")); len(got) > 0 {
		t.Errorf("a raw terminal sends %v", got)
	}
}

// TestTerminalClose checks that Close of the master interrupts a Read of it, and that the output returns EOF when the other end
// is closed.
func TestTerminalClose(t *testing.T) {
	t.Parallel()
	master, slave, err := openPTY(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	read := make(chan error, 1)
	go func() { _, err := ttyOutput{master}.Read(make([]byte, 1)); read <- err }()
	if err := master.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err == nil {
		t.Error("a read of a closed terminal succeeded")
	}

	master, slave, err = openPTY(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if _, err := slave.WriteString("last words"); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	var out bytes.Buffer
	if _, err := out.ReadFrom(ttyOutput{master}); err != nil || out.String() != "last words" {
		t.Errorf("the output was %q, %v", out.String(), err)
	}
}

func TestCheckCommand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		command []string
		user    string
		field   string // field of the error; "" if there is no error
	}{
		{[]string{"a"}, "", ""},
		{[]string{"a"}, "0", ""},
		{[]string{"a"}, "65535:65535", ""},
		{[]string{"a"}, "name:group", ""},
		{[]string{"a"}, "name2", ""},
		{nil, "", "command"},
		{[]string{""}, "", "command"},
		{[]string{"a"}, "65536", "user"},
		{[]string{"a"}, "0:65536", "user"},
		{[]string{"a"}, "name:4294967296", "user"},
		{[]string{"a"}, "99999999999999999999999", "user"},
	} {
		if err := checkCommand(c.command, c.user, false); caisson.FieldOf(err) != c.field {
			t.Errorf("checkCommand(%q, %q) = %v, want an error about %q", c.command, c.user, err, c.field)
		}
	}
	if err := checkCommand(nil, "", true); err != nil {
		t.Errorf("without an optional command: %v", err)
	}
}
