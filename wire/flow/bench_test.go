package flow

import (
	"io"
	"net"
	"testing"
	"time"
)

// BenchmarkOut and BenchmarkIn measure one connection through both stacks on this machine's processors, including the sandbox's
// stack and the peer on loopback.
func BenchmarkOut(b *testing.B) {
	w := newWorld(b)
	done := make(chan struct{})
	w.listen("192.0.2.1:7", func(c *net.TCPConn) {
		buf := make([]byte, 1<<20)
		for {
			if _, err := c.Read(buf); err != nil {
				close(done)
				return
			}
		}
	})
	w.policy(allowAll)
	c := w.mustDial("192.0.2.1:7")
	c.SetDeadline(time.Time{})
	buf := make([]byte, 256<<10)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	c.CloseWrite()
	<-done
}

func BenchmarkIn(b *testing.B) {
	w := newWorld(b)
	w.listen("192.0.2.1:7", func(c *net.TCPConn) {
		buf := make([]byte, 256<<10)
		for {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	})
	w.policy(allowAll)
	c := w.mustDial("192.0.2.1:7")
	c.SetDeadline(time.Time{})
	buf := make([]byte, 256<<10)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConnect measures a connection that is decided, dialled, accepted and closed.
func BenchmarkConnect(b *testing.B) {
	w := newWorld(b, func(c *Config, _ *timeouts) { c.Limits.PerSecond, c.Limits.Burst = 1e9, 1e9 })
	w.listen("192.0.2.1:7", func(c *net.TCPConn) {
		io.Copy(io.Discard, c)
	})
	w.policy(allowAll)
	for b.Loop() {
		c, err := w.dial("192.0.2.1:7")
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}

// BenchmarkNarrow is BenchmarkIn on a connection without large buffers, because the limit is reached.
func BenchmarkNarrow(b *testing.B) {
	w := newWorld(b, func(c *Config, _ *timeouts) { c.ProcessLimits = NewProcessLimits(10, 0) })
	w.listen("192.0.2.1:7", func(c *net.TCPConn) {
		buf := make([]byte, 256<<10)
		for {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	})
	w.policy(allowAll)
	c := w.mustDial("192.0.2.1:7")
	c.SetDeadline(time.Time{})
	buf := make([]byte, 256<<10)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}
