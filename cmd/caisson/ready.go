package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// readyVar names the descriptor on which a daemon in the background tells the command that started it how it went: one
// line, "ok" or the reason why not.
const readyVar = "CAISSON_READY_FD"

// signalReady tells whoever started this daemon, a command or systemd, that it serves (err nil) or cannot. Only the
// first call has an effect: the variables are taken out of the environment.
func signalReady(err error) error {
	line := "ok"
	if err != nil {
		line = strings.ReplaceAll(describe(err).Message, "\n", " ")
	}
	if fd, convErr := strconv.Atoi(os.Getenv(readyVar)); convErr == nil && fd > 2 {
		os.Unsetenv(readyVar)
		f := os.NewFile(uintptr(fd), "ready")
		_, werr := fmt.Fprintln(f, line)
		if cerr := f.Close(); werr == nil {
			werr = cerr
		}
		if werr != nil {
			return fmt.Errorf("report readiness: %w", werr)
		}
	}
	if addr := os.Getenv("NOTIFY_SOCKET"); addr != "" && err == nil {
		os.Unsetenv("NOTIFY_SOCKET")
		return notifySystemd(addr)
	}
	return nil
}

func notifySystemd(addr string) error {
	if strings.HasPrefix(addr, "@") { // Linux's abstract name space
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
