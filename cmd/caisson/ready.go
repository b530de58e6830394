package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// readyVar is the environment variable with the number of the file descriptor on which a daemon in the background reports to the
// command that started it. The report is one line: "ok", or, if the daemon cannot serve, the kind of the error, a tab and its
// message.
const readyVar = "CAISSON_READY_FD"

// signalReady reports that this daemon is ready if err is nil, otherwise why it cannot serve. The report goes to the command that
// has started the daemon, and readiness also to systemd, if the environment names them. A report removes its environment
// variable, so that only the first call has an effect.
func signalReady(err error) error {
	line := "ok"
	if err != nil {
		r := newErrorReport(splitErrors(err)[0])
		line = string(r.Kind) + "\t" + r.text()
	}
	if fd, convErr := strconv.Atoi(os.Getenv(readyVar)); convErr == nil && fd > 2 {
		os.Unsetenv(readyVar)
		f := os.NewFile(uintptr(fd), "ready")
		_, werr := fmt.Fprintln(f, line)
		if werr = errors.Join(werr, f.Close()); werr != nil {
			return fmt.Errorf("report readiness: %w", werr)
		}
	}
	if addr := os.Getenv("NOTIFY_SOCKET"); addr != "" && err == nil {
		os.Unsetenv("NOTIFY_SOCKET")
		return notifySystemd(addr)
	}
	return nil
}

// notifySystemd sends READY=1 to systemd at the address addr, the value of NOTIFY_SOCKET; see sd_notify(3).
func notifySystemd(addr string) error {
	if strings.HasPrefix(addr, "@") { // @ means an address in Linux's abstract namespace
		addr = "\x00" + addr[1:]
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: addr, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	defer conn.Close()
	_, err = conn.Write([]byte("READY=1"))
	return err
}
