package drive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Intervals and timeouts of the requests that check whether an agent's service is ready.
const (
	minProbeInterval = 5 * time.Millisecond   // pause after the first request; doubled after each further request
	maxProbeInterval = 100 * time.Millisecond // longest pause between two requests
	probeTimeout     = 2 * time.Second        // timeout of one request to the service
)

// awaitTime is the longest time for which [ExecWhenReady] waits for the service.
const awaitTime = 5 * time.Minute

// ExecWhenReady waits until an agent's service answers a request for the URL args[0] with status 200, and then replaces this
// process by the command args[1:]. It returns only if that fails.
func ExecWhenReady(args []string) error {
	if len(args) < 2 {
		return errors.New("await needs a URL and a command")
	}
	fmt.Fprint(os.Stderr, "waiting for the agent's service ...\r\n")
	if err := waitReady(context.Background(), args[0], awaitTime); err != nil {
		return err
	}
	program, err := exec.LookPath(args[1])
	if err != nil {
		return err
	}
	return syscall.Exec(program, args[1:], os.Environ())
}

// waitReady requests url repeatedly until the status is 200. Returns an error when limit has passed or ctx is done.
func waitReady(ctx context.Context, url string, limit time.Duration) error {
	host, path, err := splitURL(url)
	if err != nil {
		return err
	}
	said := limit // the timeout in the error message
	if end, ok := ctx.Deadline(); ok {
		said = min(limit, time.Until(end).Round(time.Millisecond))
	}
	ctx, cancel := context.WithTimeout(ctx, limit) // keeps the deadline of ctx if that is earlier
	defer cancel()
	end, _ := ctx.Deadline()
	var last error
	for pause := minProbeInterval; ; pause = min(2*pause, maxProbeInterval) {
		err := probe(ctx, host, path)
		if err == nil {
			return nil
		}
		// Keep the last error that was not caused by the deadline, because it describes the service better. A request can time
		// out just before ctx does.
		if last == nil || ctx.Err() == nil && time.Now().Before(end) {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agent's service was not ready within %v: %w", said, last)
		case <-time.After(pause):
		}
	}
}

// splitURL splits "http://HOST:PORT/PATH". It avoids net/url and net/http, which would make the binary much larger.
func splitURL(url string) (host, path string, err error) {
	rest, ok := strings.CutPrefix(url, "http://")
	host, path, _ = strings.Cut(rest, "/")
	if _, _, err := net.SplitHostPort(host); !ok || err != nil || strings.ContainsFunc(url, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return "", "", fmt.Errorf("%.100q cannot be asked whether a service is ready; write http://127.0.0.1:PORT/PATH", url)
	}
	return host, "/" + path, nil
}

// probe sends one HTTP request for path to host. It returns nil if the status is 200.
func probe(ctx context.Context, host, path string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	status, err := bufio.NewReaderSize(io.LimitReader(conn, 1<<10), 1<<10).ReadString('\n')
	if err != nil {
		return errors.Join(errors.New("no answer"), err)
	}
	if proto, code, _ := strings.Cut(status, " "); !strings.HasPrefix(proto, "HTTP/1.") || !strings.HasPrefix(code, "200") {
		return fmt.Errorf("its answer is %.60q", strings.TrimSpace(status))
	}
	return nil
}
