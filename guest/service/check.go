package service

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/excerpt"
)

// checkTimeout is the maximum duration of one check of a service's readiness.
const checkTimeout = 5 * time.Second

// check checks once whether a service is ready. It returns soon after ctx has ended.
func check(ctx context.Context, host Environment, s caisson.Service) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	switch r := s.Readiness; {
	case r.HTTP != "":
		return checkHTTP(ctx, host, s.Port, r.HTTP)
	case len(r.Exec) > 0:
		return checkExec(ctx, host, s)
	default:
		conn, err := host.Dial(ctx, s.Port)
		if err == nil {
			conn.Close()
		}
		return err
	}
}

// Dial connects to a TCP port of the loopback device, first over IPv4 and then over IPv6.
func Dial(ctx context.Context, port int) (net.Conn, error) {
	var first error
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, fmt.Errorf("port %d does not accept a connection: %w", port, first)
}

// checkHTTP requests a path of a service's port over HTTP. It returns nil if the status is 2xx or 3xx. It does not use net/http,
// which would make guestd much larger.
func checkHTTP(ctx context.Context, h Environment, port int, path string) error {
	conn, err := h.Dial(ctx, port)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	host := "localhost:" + strconv.Itoa(port)
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\nAccept: */*\r\nConnection: close\r\n\r\n"); err != nil {
		return fmt.Errorf("GET %s: %w", path, err)
	}
	status, err := bufio.NewReaderSize(io.LimitReader(conn, 1<<10), 1<<10).ReadString('\n')
	if err != nil {
		return fmt.Errorf("GET %s has no answer", path)
	}
	if proto, rest, _ := strings.Cut(status, " "); strings.HasPrefix(proto, "HTTP/1.") && len(rest) > 3 && (rest[0] == '2' || rest[0] == '3') {
		return nil
	}
	return fmt.Errorf("GET %s is answered %.60q", path, strings.TrimSpace(status))
}

// checkExec runs the command of a readiness check. It returns nil if the command succeeds.
func checkExec(ctx context.Context, host Environment, s caisson.Service) error {
	// The check has an id of its own, because the end of one process of a service ends all processes with the same id.
	s.ID, s.Command = s.ID+"/check", s.Readiness.Exec
	said := &excerpt.Head{Limit: maxMessage}
	p, err := host.Start(s, said)
	if err != nil {
		return fmt.Errorf("the check cannot be started: %w", err)
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Kill()
		<-p.Done()
		return errors.New("the check takes too long")
	}
	if exit := p.Exit(); !exit.Success() {
		return errors.New(strings.TrimSuffix(fmt.Sprintf("the check %s: %s", exit, strings.TrimSpace(said.String())), ": "))
	}
	return nil
}
