package flow

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// serveHTTP starts a web server at addr that describes the requests that it received, and returns these.
func (w *testWorld) serveHTTP(addr string) (asked func() []string) {
	var mu sync.Mutex
	var got []string
	h := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		line := fmt.Sprintf("%s %s %s %s", r.Method, r.Host, r.RequestURI, body)
		mu.Lock()
		got = append(got, line)
		mu.Unlock()
		if r.URL.Path == "/last" {
			rw.Header().Set("Connection", "close")
		}
		io.WriteString(rw, "["+line+"]")
	})
	w.listen(addr, func(c *net.TCPConn) {
		done := make(chan struct{})
		s := &http.Server{Handler: h, DisableGeneralOptionsHandler: true, ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed || s == http.StateHijacked {
				close(done)
			}
		}}
		s.Serve(&singleListener{conn: c, until: done, addr: c.LocalAddr()})
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), got...)
	}
}

// webWorld returns a world with good.example, which is allowed, and bad.example, which is not, at one address.
func webWorld(t *testing.T, addr string) (w *testWorld, asked func() []string) {
	w = newWorld(t)
	asked = w.serveHTTP(addr)
	host, _, _ := net.SplitHostPort(addr)
	w.resolved(host, "good.example", "also.example", "bad.example")
	w.policy(allowName("good.example", "also.example"))
	return w, asked
}

// exchangeHTTP sends text and returns the status and body of the answers until the connection ends.
func (w *testWorld) exchangeHTTP(addr, text string) (answers []string) {
	w.t.Helper()
	c := w.mustDial(addr)
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		w.t.Fatal(err)
	}
	c.CloseWrite()
	r := bufio.NewReader(c)
	for {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return answers
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			answers = append(answers, "broken")
			return answers
		}
		answers = append(answers, fmt.Sprintf("%d %s", resp.StatusCode, body))
	}
}

func TestHTTP(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string // prefixes of answers
		asked      int      // requests that reached the server
		reason     string   // of the refusal, if any
	}{
		{"plain", "GET /a%2Fb?x=1;y HTTP/1.1\r\nHost: good.example\r\n\r\n", []string{"200 [GET good.example /a%2Fb?x=1;y ]"}, 1, ""},
		{"case, port and final dot", "GET / HTTP/1.1\r\nHost: GOOD.example.:80\r\n\r\n", []string{"200 [GET GOOD.example.:80 / ]"}, 1, ""},
		{"white space first", "\r\n\r\nGET / HTTP/1.1\r\nHost: bad.example\r\n\r\n", []string{"400"}, 0, "malformed"},
		{"another host", "GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n", []string{"403 caisson: GET \"bad.example\" refused: no rule allows it; run `caisson policy explain` for a rule that would allow it\n"}, 0, "no rule"},
		{"never resolved", "GET / HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n", []string{"403"}, 0, "has not answered"},
		{"an address", "GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n", []string{"403"}, 0, "has not answered"},
		{"no host", "GET / HTTP/1.0\r\n\r\n", []string{"403"}, 0, "no Host"},
		{"no host in 1.1", "GET / HTTP/1.1\r\n\r\n", []string{"400"}, 0, "malformed"},
		{"1.0", "GET / HTTP/1.0\r\nHost: good.example\r\n\r\n", []string{"200 [GET good.example / ]"}, 1, ""},
		{"second request", "GET / HTTP/1.1\r\nHost: good.example\r\n\r\nGET / HTTP/1.1\r\nHost: bad.example\r\n\r\nGET /3 HTTP/1.1\r\nHost: good.example\r\n\r\n",
			[]string{"200 [GET good.example / ]", "403"}, 1, "no rule"},
		{"pipelining", "GET /1 HTTP/1.1\r\nHost: good.example\r\n\r\nPOST /2 HTTP/1.1\r\nHost: also.example\r\nContent-Length: 3\r\n\r\nabcGET /3 HTTP/1.1\r\nHost: good.example\r\n\r\n",
			[]string{"200 [GET good.example /1 ]", "200 [POST also.example /2 abc]", "200 [GET good.example /3 ]"}, 3, ""},
		{"absolute form", "GET http://good.example/x HTTP/1.1\r\nHost: bad.example\r\n\r\n", []string{"200 [GET good.example /x ]"}, 1, ""},
		{"absolute form of another", "GET http://bad.example/x HTTP/1.1\r\nHost: good.example\r\n\r\n", []string{"403"}, 0, "no rule"},
		{"connect", "CONNECT bad.example:443 HTTP/1.1\r\nHost: good.example\r\n\r\n", []string{"403"}, 0, "not clear"},
		{"opaque target", "GET x:http://bad.example/secret HTTP/1.1\r\nHost: good.example\r\n\r\n", []string{"403"}, 0, "not clear"},
		{"opaque http target", "GET http:bad.example/secret HTTP/1.1\r\nHost: good.example\r\n\r\n", []string{"403"}, 0, "not clear"},
		{"opaque options", "OPTIONS x:http://bad.example/secret HTTP/1.1\r\nHost: good.example\r\n\r\n", []string{"403"}, 0, "not clear"},
		{"another scheme", "GET https://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n", []string{"403"}, 0, "not clear"},
		{"a scheme and no host", "GET http:///x HTTP/1.1\r\nHost: good.example\r\n\r\n", []string{"403"}, 0, "not clear"},
		{"user in the target", "GET http://bad.example@good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n", []string{"403"}, 0, "not clear"},
		{"star", "OPTIONS * HTTP/1.1\r\nHost: good.example\r\n\r\n", []string{"200"}, 1, ""},
		{"star of another method", "GET * HTTP/1.1\r\nHost: good.example\r\n\r\n", []string{"403"}, 0, "not clear"},
		{"two slashes", "GET //bad.example/x HTTP/1.1\r\nHost: good.example\r\n\r\n", []string{"200 [GET good.example //bad.example/x ]"}, 1, ""},
		{"a name for a port", "GET / HTTP/1.1\r\nHost: good.example:bad.example\r\n\r\n", []string{"403"}, 0, "not a name"},
		{"a signed port", "GET / HTTP/1.1\r\nHost: good.example:+80\r\n\r\n", []string{"403"}, 0, "not a name"},
		{"no port", "GET / HTTP/1.1\r\nHost: good.example:\r\n\r\n", []string{"403"}, 0, "not a name"},
		{"brackets", "GET / HTTP/1.1\r\nHost: [good.example]:80\r\n\r\n", []string{"403"}, 0, "not a name"},
		{"two final dots", "GET / HTTP/1.1\r\nHost: good.example..\r\n\r\n", []string{"403"}, 0, "has not answered"},
		{"two hosts", "GET / HTTP/1.1\r\nHost: good.example\r\nHost: bad.example\r\n\r\n", []string{"400"}, 0, "malformed"},
		{"folded host", "GET / HTTP/1.1\r\nHost: good.example\r\n bad.example\r\n\r\n", []string{"4"}, 0, "malformed"},
		{"space before colon", "GET / HTTP/1.1\r\nHost: good.example\r\nHost : bad.example\r\n\r\n", []string{"4"}, 0, "malformed"},
		{"length and chunks", "POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /bad HTTP/1.1\r\nHost: bad.example\r\n\r\n",
			[]string{"200 [POST good.example / ]", ""}, 1, ""},
		{"two lengths", "POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde", []string{"400"}, 0, "malformed"},
		{"odd coding", "POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", []string{"501"}, 0, "malformed"},
		{"hidden in a body", "POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 42\r\n\r\nGET / HTTP/1.1\r\nHost: bad.example\r\n\r\n12345",
			[]string{"200 [POST good.example / GET / HTTP/1.1\r\nHost: bad.example\r\n\r\n12345]"}, 1, ""},
		{"upgrade to HTTP/2", "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
			[]string{"200 [GET good.example / ]"}, 1, ""},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []string{"403"}, 0, "no Host"},
		{"HTTP/0.9", "GET /\r\n", []string{"400"}, 0, "malformed"},
		{"something else", "SSH-2.0-x\r\n", nil, 0, "only plain HTTP"},
		{"nothing", "", nil, 0, ""},
		{"server ends", "GET /last HTTP/1.1\r\nHost: good.example\r\n\r\nGET / HTTP/1.1\r\nHost: good.example\r\n\r\n", []string{"200 [GET good.example /last ]"}, 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, port := range []string{"80", "8080"} {
				if port == "8080" && (c.name == "something else") {
					continue
				}
				w, asked := webWorld(t, "192.0.2.1:"+port)
				got := w.exchangeHTTP("192.0.2.1:"+port, c.text)
				if len(got) > len(c.want) {
					t.Errorf("answers %q, want %q", got, c.want)
				}
				for i, want := range c.want {
					if want != "" && (i >= len(got) || !strings.HasPrefix(got[i], want)) {
						t.Errorf("answers %q, want %q", got, c.want)
					}
				}
				if n := len(asked()); n != c.asked {
					t.Errorf("the server got %q, want %d", asked(), c.asked)
				}
				if c.reason != "" {
					w.reportedDenied("request", c.reason)
				}
				eventually(t, w.empty)
			}
		})
	}
}

// A connection is reused for several requests, and a refusal closes it.
func TestHTTPKeepAlive(t *testing.T) {
	w, _ := webWorld(t, "192.0.2.1:80")
	c := w.mustDial("192.0.2.1:80")
	r := bufio.NewReader(c)
	for i, host := range []string{"good.example", "also.example", "good.example", "bad.example"} {
		fmt.Fprintf(c, "GET /%d HTTP/1.1\r\nHost: %s\r\n\r\n", i, host)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		if want := host != "bad.example"; (resp.StatusCode == 200) != want {
			t.Errorf("%s: %d %s", host, resp.StatusCode, body)
		}
	}
	if n := len(w.dials()); n != 1 {
		t.Errorf("%d dials, want 1", n)
	}
	wantEnd(t, c)
}

// A policy change resets a connection during a request.
func TestHTTPRecheck(t *testing.T) {
	w := newWorld(t)
	w.listen("192.0.2.1:80", func(c *net.TCPConn) {
		http.ReadRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin")
		io.Copy(io.Discard, c)
	})
	w.resolved("192.0.2.1", "good.example", "also.example")
	w.policy(allowName("good.example", "also.example"))
	c := w.mustDial("192.0.2.1:80")
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: also.example\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	wantRead(t, resp.Body, "begin") // at once, although the answer is not complete
	w.policy(allowName("good.example"))
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the answer went on")
	}
	w.reportedDenied("flow", "ended by a change of policy")
}

func TestUpgrade(t *testing.T) {
	w := newWorld(t)
	w.listen("192.0.2.1:80", func(c *net.TCPConn) {
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil || req.Header.Get("Upgrade") != "websocket" {
			return
		}
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nfirst")
		io.Copy(c, r)
	})
	w.resolved("192.0.2.1", "good.example")
	w.policy(allowName("good.example"))
	c := w.mustDial("192.0.2.1:80")
	io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatalf("%+v, %v", resp, err)
	}
	wantRead(t, r, "first")
	io.WriteString(c, "hello")
	wantRead(t, r, "hello")
	w.policy()
	if _, err := r.ReadByte(); err == nil {
		t.Error("the connection went on")
	}
}

// An answer arrives unchanged, without additions.
func TestHTTPTransparency(t *testing.T) {
	w := newWorld(t)
	got := make(chan *http.Request, 1)
	w.listen("192.0.2.1:80", func(c *net.TCPConn) {
		r := bufio.NewReader(c)
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if req.Header.Get("Expect") != "" {
			io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		}
		io.Copy(io.Discard, req.Body)
		got <- req
		io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\nLocation: http://bad.example/\r\n\r\n2\r\nhi\r\n0\r\nX-End: yes\r\n\r\n")
	})
	w.resolved("192.0.2.1", "good.example")
	w.policy(allowName("good.example"))
	c := w.mustDial("192.0.2.1:80")
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: good.example\r\nX-Forwarded-For: me\r\nAccept-Encoding: br\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != 100 {
		t.Fatalf("%+v, %v; want 100", resp, err)
	}
	io.WriteString(c, "abc")
	if resp, err = http.ReadResponse(r, nil); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%+v, %v; want 200", resp, err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != "hi" || resp.Trailer.Get("X-End") != "yes" {
		t.Errorf("%q, %v, %v", body, err, resp.Trailer)
	}
	for _, h := range []string{"Date", "Content-Type", "Server", "Via"} {
		if v, ok := resp.Header[h]; ok {
			t.Errorf("%s: %q was added", h, v)
		}
	}
	req := <-got
	if req.Header.Get("X-Forwarded-For") != "me" || req.Header.Get("Accept-Encoding") != "br" || req.Header.Get("User-Agent") != "" || len(req.Header) != 4 && len(req.Header) != 3 {
		t.Errorf("the server saw %v", req.Header)
	}
	wantEnd(t, c) // the destination has closed the connection
}

func TestHTTPSlowHeader(t *testing.T) {
	w := newWorld(t, func(_ *Config, t *timeouts) { t.header = 20 * time.Millisecond })
	w.serveHTTP("192.0.2.1:80")
	w.resolved("192.0.2.1", "good.example")
	w.policy(allowName("good.example"))
	c := w.mustDial("192.0.2.1:80")
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: go")
	if b, err := io.ReadAll(c); isTimeout(err) {
		t.Errorf("%q, %v; want the end", b, err)
	}
	c.Close()
	eventually(t, w.empty)
}

func TestRawOnOtherPorts(t *testing.T) {
	w := newWorld(t)
	w.resolved("192.0.2.1", "good.example")
	w.policy(allowName("good.example"))
	w.listen("192.0.2.1:7", echo)
	w.listen("192.0.2.1:25", func(c *net.TCPConn) {
		io.WriteString(c, "220 hello\r\n")
		echo(c)
	})
	c := w.mustDial("192.0.2.1:7")
	wantEcho(t, c, "\x00\x01binary")
	wantEcho(t, w.mustDial("192.0.2.1:7"), "EHLO there\r\nGET / HTTP/1.1\r\n")
	c = w.mustDial("192.0.2.1:25")
	wantRead(t, c, "220 hello\r\n") // before the sandbox sends anything
	wantEcho(t, c, "EHLO me\r\n")
	short := w.mustDial("192.0.2.1:7") // less than a line, and then the end
	io.WriteString(short, "word")
	short.CloseWrite()
	if got, err := io.ReadAll(short); err != nil || string(got) != "word" {
		t.Errorf("%q, %v", got, err)
	}

	after := w.mustDial("192.0.2.1:25") // HTTP after the server has sent data
	wantRead(t, after, "220 hello\r\n")
	io.WriteString(after, "GET / HTTP/1.1\r\nHost: good.example\r\n\r\n")
	wantEnd(t, after)
	w.reportedDenied("request", "HTTP was sent after")

	odd := w.mustDial("192.0.2.1:7") // relayed, until it becomes HTTP
	wantEcho(t, odd, "(GET) / HT")
	io.WriteString(odd, "TP/1.1\r\nHost: bad.example\r\n\r\n")
	wantEnd(t, odd)
	w.reportedDenied("request", "looks like HTTP")

	proxied := w.mustDial("192.0.2.1:7")
	io.WriteString(proxied, "PROXY TCP4 1.2.3.4 1.2.3.4 1 1\r\nGET / HTTP/1.1\r\n")
	wantEnd(t, proxied)
	w.reportedDenied("request", "header of a proxy")
}

// A connection that stalls within its first line is refused after a timeout, because it may become HTTP.
func TestHalfALine(t *testing.T) {
	w := newWorld(t, func(_ *Config, t *timeouts) { t.sniff = 50 * time.Millisecond })
	w.resolved("192.0.2.1", "good.example")
	w.policy(allowName("good.example"))
	w.listen("192.0.2.1:7", echo)
	slow := w.mustDial("192.0.2.1:7")
	io.WriteString(slow, "FETCH / HTT")
	wantEnd(t, slow)
	w.reportedDenied("request", "too little data came")
}

// A flow on which neither end sends data may stay, and ends when either does.
func TestSilence(t *testing.T) {
	w := newWorld(t)
	w.resolved("192.0.2.1", "good.example")
	w.policy(allowName("good.example"))
	gone := make(chan error, 3)
	for _, port := range []string{"80", "443", "7"} {
		w.listen("192.0.2.1:"+port, func(c *net.TCPConn) {
			_, err := c.Read(make([]byte, 1))
			gone <- err
		})
		c := w.mustDial("192.0.2.1:" + port)
		c.Close()
		if err := <-gone; !errors.Is(err, io.EOF) {
			t.Errorf("port %s: %v", port, err)
		}
	}
	eventually(t, w.empty)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.decisions {
		if d.Kind == "request" && !d.Allowed {
			t.Errorf("silence is refused: %+v", d)
		}
	}
}

// No input makes a server receive a request for a host that is not allowed.
func FuzzHTTP(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: good.example\r\n\r\nGET / HTTP/1.1\r\nHost: bad.example\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: bad.example\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n2;x=\"\r\nab\r\n0\r\nHost: bad.example\r\n\r\n",
		"GET http://bad.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"GET //bad.example/ HTTP/1.1\r\nHost: good.example\r\nHost: bad.example\r\n\r\n",
		"GET x:http://bad.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.example:bad.example\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: good.example\r\nConnection: Host, close\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.example@bad.example\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: good.example\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
	} {
		f.Add(s)
	}
	w := newWorld(f, func(c *Config, t *timeouts) {
		c.Limits.PerSecond, c.Limits.Burst, t.header, t.sniff = 1e9, 1e9, 100*time.Millisecond, 100*time.Millisecond
	})
	asked := w.serveHTTP("192.0.2.1:80")
	w.resolved("192.0.2.1", "good.example", "bad.example")
	w.policy(allowName("good.example"))
	seen := 0
	f.Fuzz(func(t *testing.T, text string) {
		c, err := w.dial("192.0.2.1:80")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		io.WriteString(c, text) // may be refused before all was sent
		c.CloseWrite()
		if _, err := io.Copy(io.Discard, c); isTimeout(err) {
			t.Fatal("no end")
		}
		all := asked()
		for _, line := range all[seen:] {
			f := strings.SplitN(line, " ", 4)
			if hostName(f[1]) != "good.example" || f[2][0] != '/' && f[2] != "*" {
				t.Fatalf("asked for %q", line)
			}
		}
		seen = len(all)
	})
}
