package main

import (
	"net"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/poll"
)

// TestLimitConns: a connection too many waits until another ends, and Close ends the wait.
func TestLimitConns(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limitConns(inner, 2)
	accepted := make(chan net.Conn, 8)
	ended := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- c
		}
	}()
	for range 3 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	first := <-accepted
	second := <-accepted
	select {
	case <-accepted:
		t.Fatal("a third connection was accepted")
	case <-time.After(50 * time.Millisecond):
	}
	first.Close()
	first.Close() // frees its place once
	third := <-accepted
	defer second.Close()
	defer third.Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, time.Minute, func() bool { return len(ended) == 1 })
}
