package main

import (
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// raw sends Data as the payload of an IP packet of protocol Proto, or the whole packet in Frame.
func raw(a attempt) (bool, string) {
	to, err := netip.ParseAddr(a.To)
	if err != nil {
		return true, err.Error()
	}
	family, proto, at := unix.AF_INET, a.Proto, unix.Sockaddr(nil)
	if to.Is4() {
		at = &unix.SockaddrInet4{Addr: to.As4()}
	} else {
		family, at = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.As16()}
	}
	if a.Frame != nil {
		proto = unix.IPPROTO_RAW
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return false, "socket: " + err.Error()
	}
	defer unix.Close(fd)
	data := []byte(a.Data)
	if a.Frame != nil {
		data = a.Frame
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_HDRINCL, 1); err != nil && to.Is4() {
			return false, "header: " + err.Error()
		}
	}
	if err := unix.Sendto(fd, data, 0, at); err != nil {
		return false, "send: " + err.Error()
	}
	return hear(fd)
}

// hear waits a little for an answer to a raw socket from anybody but this sandbox itself.
func hear(fd int) (bool, string) {
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: quiet.Microseconds()}); err != nil {
		return true, err.Error()
	}
	buf := make([]byte, 2048)
	n, from, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return false, "sent; " + err.Error()
	}
	const unreachable = 3 // an ICMP message of the wire's own, which is how it refuses
	if n >= 28 && buf[0]>>4 == 4 && buf[9] == unix.IPPROTO_ICMP && buf[20] == unreachable {
		return false, "sent; unreachable"
	}
	return true, fmt.Sprintf("%d bytes from %v: %x", n, from, buf[:min(n, 40)])
}

// frame sends a whole Ethernet frame.
func frame(a attempt) (bool, string) {
	dev, err := net.InterfaceByName("eth0")
	if err != nil {
		return true, err.Error()
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, "socket: " + err.Error()
	}
	defer unix.Close(fd)
	at := &unix.SockaddrLinklayer{Ifindex: dev.Index, Halen: 6}
	copy(at.Addr[:], a.Frame)
	if err := unix.Sendto(fd, a.Frame, 0, at); err != nil {
		return false, "send: " + err.Error()
	}
	return false, "sent"
}
