package sshproxy

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
)

// A testConn is an end of a pipe that buffers what is written. It stops to deliver what it reads when silent is set, as if its
// host had lost its network.
type testConn struct {
	net.Conn
	silent atomic.Bool
	queue  chan []byte
	ended  chan struct{} // closed by the test
}

func newTestConn(c net.Conn, ended chan struct{}) *testConn {
	t := &testConn{Conn: c, queue: make(chan []byte, 100), ended: ended}
	go func() {
		for {
			select {
			case b := <-t.queue:
				_, _ = c.Write(b) // fails when the other end is closed
			case <-ended:
				return
			}
		}
	}()
	return t
}

func (c *testConn) Write(b []byte) (int, error) {
	select {
	case c.queue <- bytes.Clone(b):
		return len(b), nil
	case <-c.ended:
		return 0, io.ErrClosedPipe
	}
}

func (c *testConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.silent.Load() {
		<-c.ended
		return 0, io.EOF
	}
	return n, err
}

// TestKeepalive tests that the connection of a client that still answers stays open, and that of a silent client is closed.
func TestKeepalive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		ended := make(chan struct{})
		near, client := newTestConn(a, ended), newTestConn(b, ended)
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		signer, err := ssh.NewSignerFromKey(key)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn, channels, requests, err := ssh.NewClientConn(client, "", &ssh.ClientConfig{HostKeyCallback: ssh.InsecureIgnoreHostKey()})
			if err != nil {
				return // the test ends at the server's end
			}
			go ssh.DiscardRequests(requests)
			for c := range channels {
				c.Reject(ssh.Prohibited, "")
			}
			conn.Wait()
		}()
		cfg := &ssh.ServerConfig{NoClientAuth: true}
		cfg.AddHostKey(signer)
		conn, channels, requests, err := ssh.NewServerConn(near, cfg)
		if err != nil {
			t.Fatal(err)
		}
		s := &server{conn: conn}
		go s.refuseRequests(requests)
		go s.keepalive()
		over := make(chan struct{})
		go func() {
			defer close(over)
			for range channels {
			}
		}()
		time.Sleep(time.Hour)
		select {
		case <-over:
			t.Fatal("the connection of a client that answers was closed")
		default:
		}
		client.silent.Store(true)
		began := time.Now()
		<-over
		if took := time.Since(began); took > 2*keepalive {
			t.Errorf("closed after %v", took)
		}
		b.Close()
		close(ended)
		time.Sleep(keepalive) // the goroutine of keepalive ends at its next tick
	})
}
