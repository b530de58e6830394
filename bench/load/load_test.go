package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// serveOn serves connections until the test ends.
func serveOn(t *testing.T, serve func(net.Conn) error) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
	return l.Addr().String()
}

func TestClients(t *testing.T) {
	model, sink := serveOn(t, model), serveOn(t, sink)
	o := options{n: 5, warm: 2, conns: 3, duration: 20 * time.Millisecond}
	for _, c := range []struct {
		client, to string
		want       int
	}{
		{"call", "http://" + model + "/v1/chat/completions", 5},
		{"rate", "http://" + model + "/v1/chat/completions", 1},
		{"connect", sink, 5},
		{"send", sink, 1},
		{"receive", sink, 1},
	} {
		got, err := clients[c.client](o, c.to)
		if err != nil || len(got) != c.want {
			t.Errorf("%s: %v, %v; want %d samples", c.client, got, err, c.want)
		}
		for _, v := range got {
			if v <= 0 {
				t.Errorf("%s: %v", c.client, got)
			}
		}
	}
}

// TestWrongAnswers tests that a response is not measured unless it is the model's complete answer on a connection with
// keep-alive.
func TestWrongAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		handle http.HandlerFunc
		want   string
	}{
		{"refused", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }, "403"},
		{"another answer", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }, "200 OK: {}"},
		{"closed", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			fmt.Fprint(w, answer)
		}, "not kept alive"},
	} {
		s := httptest.NewServer(c.handle)
		for _, client := range []string{"call", "rate"} {
			_, err := clients[client](options{n: 2, conns: 2, duration: time.Millisecond}, s.URL+"/v1/chat/completions")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: %v, want %q", c.name, client, err, c.want)
			}
		}
		s.Close()
	}
}
