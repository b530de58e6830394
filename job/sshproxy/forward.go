package sshproxy

import (
	"io"
	"net"
	"strconv"

	"golang.org/x/crypto/ssh"
)

// forward serves a channel that the client has opened to an address: it connects to that address, as a program in the sandbox
// would, and copies the data in both directions.
func (s *server) forward(c ssh.NewChannel) {
	network, address, ok := forwardTarget(c)
	if !ok {
		refuse(c, ssh.ConnectionFailed, "this is not an address")
		return
	}
	conn, err := s.remote.dial(network, address)
	if err != nil {
		refuse(c, ssh.ConnectionFailed, failureText(err))
		return
	}
	defer conn.Close()
	channel, requests, err := c.Accept()
	if err != nil {
		return
	}
	defer channel.Close()
	go ssh.DiscardRequests(requests)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		// On an error, the connection is closed, which also ends the copy in the other direction.
		if _, err := io.CopyBuffer(onlyWriter{conn}, channel, make([]byte, blockSize)); err != nil {
			conn.Close()
			return
		}
		closeWrite(conn)
	}()
	if _, err := io.CopyBuffer(onlyWriter{channel}, onlyReader{conn}, make([]byte, blockSize)); err != nil {
		return
	}
	_ = channel.CloseWrite() // fails when the connection has ended
	<-sent
}

// forwardTarget returns the address to which the client has opened a channel. ok is false if it is malformed.
func forwardTarget(c ssh.NewChannel) (network, address string, ok bool) {
	if c.ChannelType() == "direct-streamlocal@openssh.com" {
		var m struct {
			Path     string
			Reserved string
			Port     uint32
		}
		if ssh.Unmarshal(c.ExtraData(), &m) != nil || m.Path == "" {
			return "", "", false
		}
		return "unix", m.Path, true
	}
	var m struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}
	if ssh.Unmarshal(c.ExtraData(), &m) != nil || m.Host == "" || m.Port == 0 || m.Port > 65535 {
		return "", "", false
	}
	return "tcp", net.JoinHostPort(m.Host, strconv.Itoa(int(m.Port))), true
}

// blockSize is the size of the blocks that are copied: the largest packet of a channel.
const blockSize = 32 << 10

// onlyWriter and onlyReader hide other methods, so that [io.CopyBuffer] uses its buffer.
type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

// closeWrite signals to the other end of c that no more data follows, if c supports that.
func closeWrite(c io.Writer) {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // fails when the other end has gone
	}
}
