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

	"github.com/caisson-dev/caisson/job/worker"
)

// dialed returns the addresses that a job can connect to, after it has connected to listeners of its own.
func dialed(_ context.Context, _ *worker.Call, args dials) ([]string, error) {
	got := []string{}
	for _, t := range args.Targets {
		if conn, err := net.DialTimeout(t[0], t[1], 2*time.Second); err == nil {
			conn.Close()
			got = append(got, t[1])
		}
	}
	for _, a := range args.Own {
		if err := greet(a[0], a[1]); err != nil {
			return nil, fmt.Errorf("%s: %w", a[1], err)
		}
	}
	return got, nil
}

// greet opens a listener, connects to it and reads one byte from it.
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
	r := newRunner(t)
	_, root := ownedDir(t, 0x50000000)
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
	args := dials{Targets: targets, Own: [][2]string{{"tcp", "127.0.0.1:0"}, {"unix", "/tmp/socket"}}}
	if ip6() {
		args.Own = append(args.Own, [2]string{"tcp", "[::1]:0"})
	}
	if err := r.Run(t.Context(), worker.Request{Job: "dial", Args: args, Root: root, Programs: true}, &got); err != nil {
		t.Fatal(err)
	}
	if len(got) > 0 {
		t.Errorf("reached %q of %q", got, targets)
	}
}

type dials struct{ Targets, Own [][2]string }

func ip6() bool {
	l, err := net.Listen("tcp", "[::1]:0")
	if err == nil {
		l.Close()
	}
	return err == nil
}

// A directory of a user of the host may contain the sockets of an agent, such as ssh-agent.
func TestPromise4SocketsInDirectoriesAreOutOfReach(t *testing.T) {
	r := newRunner(t)
	_, account := ownedDir(t, 0x50000000)
	for _, owner := range []int{0, 1234, 70000} {
		dir, root := ownedDir(t, owner)
		path := filepath.Join(dir, "s")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
		for _, req := range []worker.Request{
			{Root: root, Access: worker.WriteAsOwner},
			{Root: root},
			{Root: account, Mounts: []worker.Mount{{Dir: root, At: "/view"}}},
		} {
			req.Job, req.Programs = "dial", true
			req.Args = dials{Targets: [][2]string{{"unix", "/work/s"}, {"unix", "/view/s"}}, Own: [][2]string{{"tcp", "127.0.0.1:0"}}}
			var got []string
			if err := r.Run(t.Context(), req, &got); err != nil || len(got) > 0 {
				t.Errorf("%d: reached %q, %v", owner, got, err)
			}
		}
	}
}
