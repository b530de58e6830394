package wire

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A sandbox that requests pages and does not read them blocks only its own next page, not those of others.
func TestUnreadPages(t *testing.T) {
	t.Parallel()
	h := newVirtualHosts(nil)
	served1, served2 := &sandboxWire{whySlot: make(chan struct{}, 1)}, &sandboxWire{whySlot: make(chan struct{}, 1)}
	var made atomic.Int32
	begun := make(chan struct{}, 100)
	served1.whyHandler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		made.Add(1)
		io.WriteString(rw, strings.Repeat("x", 1<<20))
		begun <- struct{}{}
	})
	served2.whyHandler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "hello") })
	done := make(chan error)
	go func() { done <- h.run() }()
	defer func() {
		h.close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	const ask = "GET /why HTTP/1.1\r\nHost: caisson.internal\r\n\r\n"
	dial := func(w *sandboxWire) net.Conn {
		near, far := net.Pipe()
		t.Cleanup(func() { near.Close() })
		near.SetDeadline(time.Now().Add(time.Minute))
		h.serve(w, far)
		if _, err := io.WriteString(near, ask); err != nil {
			t.Fatal(err)
		}
		return near
	}
	first := dial(served1)
	<-begun
	for range 2 * maxRenderings {
		dial(served1)
	}
	c := dial(served2)
	go io.WriteString(c, ask) // a second request on the same connection is not answered
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || !resp.Close {
		t.Fatalf("%+v, %v; want an answer that is the last", resp, err)
	}
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	if n := made.Load(); n != 1 {
		t.Errorf("%d pages were made for who does not read, want 1", n)
	}
	first.Close()
	<-begun // the next request is served
}
