package worker_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/worker"
)

// dialed reports which addresses a job can reach; "loopback" are listeners of its own.
func dialed(_ context.Context, c *worker.Call) (any, error) {
	var targets [][2]string
	if err := c.Args(&targets); err != nil {
		return nil, err
	}
	got := []string{}
	for _, t := range targets {
		if conn, err := net.DialTimeout(t[0], t[1], 2*time.Second); err == nil {
			conn.Close()
			got = append(got, t[1])
		}
	}
	for _, own := range [][2]string{{"tcp", "127.0.0.1:0"}, {"tcp", "[::1]:0"}, {"unix", "/tmp/socket"}} {
		if err := greet(own[0], own[1]); err != nil {
			return nil, fmt.Errorf("%s: %w", own[1], err)
		}
	}
	return got, nil
}

// greet connects to a listener and has one byte come back.
func greet(network, address string) error {
	l, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			io.Copy(conn, conn)
			conn.Close()
		}
	}()
	conn, err := net.Dial(network, l.Addr().String())
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{1}); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

func TestPromise4ProgramsReachNobody(t *testing.T) {
	r := program.Runner(t)
	_, root := ownedDir(t, 70000)
	outside := filepath.Join(t.TempDir(), "socket")
	var targets [][2]string
	for _, a := range [][2]string{{"tcp", "127.0.0.1:0"}, {"tcp", "0.0.0.0:0"}, {"unix", outside}, {"unix", fmt.Sprintf("@caisson-test-%d", os.Getpid())}} {
		l, err := net.Listen(a[0], a[1])
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		targets = append(targets, [2]string{a[0], l.Addr().String()})
		if _, port, err := net.SplitHostPort(l.Addr().String()); err == nil {
			addrs, err := net.InterfaceAddrs()
			if err != nil {
				t.Fatal(err)
			}
			for _, addr := range addrs {
				if n, ok := addr.(*net.IPNet); ok {
					targets = append(targets, [2]string{"tcp", net.JoinHostPort(n.IP.String(), port)})
				}
			}
		}
	}
	var got []string
	if err := r.Run(t.Context(), worker.Request{Job: "dial", Args: targets, Root: root, Programs: true}, &got); err != nil {
		t.Fatal(err)
	}
	if len(got) > 0 {
		t.Errorf("reached %q of %q", got, targets)
	}
}
