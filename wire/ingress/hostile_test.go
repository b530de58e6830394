package ingress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/caisson-dev/caisson"
)

// TestSmugglingHTTP2 tests that the fields and lengths of a request of HTTP/2 do not become another request, another host or other
// fields when it is sent to a sandbox that speaks HTTP/1 (RFC 9113, sections 8.1.1, 8.2 and 10.3).
func TestSmugglingHTTP2(t *testing.T) {
	var mu sync.Mutex
	var got []string // a line for each request that the sandbox sees
	w := newWorld(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		line := r.Method + " " + r.Host + " " + r.URL.RequestURI() + " " + string(b)
		for name, values := range r.Header {
			line += " " + name + "=" + strings.Join(values, ",")
		}
		if err == nil { // a request whose body was cut is not one
			got = append(got, line)
		}
	}), nil)
	w.configure(caisson.RouteSpec{Host: "a.example"}, caisson.RouteSpec{Host: "b.example", Auth: caisson.RouteAuth{Kind: "bearer", Hashes: []string{hash("t")}}})
	addr, client := w.tls()
	config := client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = []string{"h2"}

	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: a.example\r\n\r\n"
	base := []string{":method", "POST", ":scheme", "https", ":authority", "a.example", ":path", "/first"}
	with := func(pairs ...string) []string { return append(slices.Clone(base), pairs...) }
	replace := func(name, value string) []string {
		fields := slices.Clone(base)
		fields[slices.Index(fields, name)+1] = value
		return fields
	}
	for name, c := range map[string]struct {
		fields []string
		data   string
		path   string // that the sandbox may see; "" means /first
	}{
		"a fine one":          {with(), "ab", ""},
		"more data":           {with("content-length", "0"), smuggled, ""},
		"less data":           {with("content-length", "500"), smuggled, ""},
		"two lengths":         {with("content-length", "0", "content-length", "44"), smuggled, ""},
		"list of lengths":     {with("content-length", "0, 44"), smuggled, ""},
		"signed length":       {with("content-length", "+0"), smuggled, ""},
		"chunked":             {with("transfer-encoding", "chunked"), "0\r\n\r\n" + smuggled, ""},
		"TE in a value":       {with("x", "y\r\ntransfer-encoding: chunked"), "0\r\n\r\n" + smuggled, ""},
		"LF in a value":       {with("x", "y\ntransfer-encoding: chunked"), "0\r\n\r\n" + smuggled, ""},
		"NUL in a value":      {with("x", "y\x00z"), "", ""},
		"request in a value":  {with("x", "y\r\n\r\n"+smuggled), "", ""},
		"CR LF in a name":     {with("x: y\r\nsmuggled", "1"), "", ""},
		"colon in a name":     {with("smuggled:", "1"), "", ""},
		"space in a name":     {with("smuggled ", "1"), "", ""},
		"upper case":          {with("Smuggled", "1"), "", ""},
		"connection":          {with("connection", "smuggled", "smuggled", "1"), "", ""},
		"keep-alive":          {with("keep-alive", "smuggled"), "", ""},
		"upgrade":             {with("connection", "upgrade", "upgrade", "smuggled"), "", ""},
		"another host":        {with("host", "b.example"), "", ""},
		"host twice":          {with(":authority", "b.example"), "", ""},
		"host with CR LF":     {replace(":authority", "a.example\r\nsmuggled: 1"), "", ""},
		"host with a space":   {replace(":authority", "a.example smuggled"), "", ""},
		"host with a path":    {replace(":authority", "a.example/smuggled"), "", ""},
		"host with a user":    {replace(":authority", "smuggled@a.example"), "", ""},
		"method with spaces":  {replace(":method", "GET /smuggled HTTP/1.1\r\nx: "), "", ""},
		"path with CR LF":     {replace(":path", "/ HTTP/1.1\r\nsmuggled: 1\r\nx: "), "", ""},
		"path with a space":   {replace(":path", "/a HTTP/1.1 smuggled"), "", "/a%20HTTP/1.1%20smuggled"},
		"path with a host":    {replace(":path", "https://b.example/smuggled"), "", "/smuggled"},
		"path without slash":  {replace(":path", "smuggled"), "", ""},
		"asterisk":            {replace(":path", "*smuggled"), "", ""},
		"unknown pseudofield": {with(":smuggled", "1"), "", ""},
		"late pseudofield":    {with("x", "y", ":path", "/smuggled"), "", ""},
		"trailer length":      {with("te", "trailers, smuggled"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if c.path == "" {
				c.path = "/first"
			}
			mu.Lock()
			got = nil
			mu.Unlock()
			statuses := sendHTTP2(t, addr, config, c.fields, c.data)
			// The connection to the sandbox is still in order: what follows is a request of its own.
			r := w.request(http.MethodGet, "a.example", "/next", nil)
			r.URL.Scheme, r.URL.Host = "https", addr
			res, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Errorf("the next request: %d", res.StatusCode)
			}
			mu.Lock()
			defer mu.Unlock()
			t.Logf("statuses %v, the sandbox saw %q", statuses, got)
			first := 0
			for _, line := range got {
				if strings.HasPrefix(line, "GET a.example /next ") {
					continue
				}
				first++
				if !strings.HasPrefix(line, "POST a.example "+c.path+" ") || c.data == "" && strings.Contains(strings.ToLower(strings.TrimPrefix(line, "POST a.example "+c.path)), "smuggled") ||
					strings.Contains(line, "Transfer-Encoding") || strings.Contains(line, "b.example") {
					t.Errorf("the sandbox saw %q", line)
				}
			}
			if len(got)-first != 1 || first > 1 || name == "a fine one" && first != 1 {
				t.Errorf("the ingress answered %v, the sandbox saw %q", statuses, got)
			}
		})
	}
}

// sendHTTP2 sends one request of HTTP/2 without checks of a client, and returns the statuses of all answers until the stream or
// connection ends.
func sendHTTP2(t *testing.T, addr string, config *tls.Config, fields []string, data string) (statuses []string) {
	t.Helper()
	c, err := tls.Dial("tcp", addr, config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(limit))
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	io.WriteString(c, http2.ClientPreface)
	f := http2.NewFramer(c, c)
	f.AllowIllegalWrites = true
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.WriteSettings()
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: data == ""})
	if data != "" {
		f.WriteData(1, true, []byte(data))
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return statuses
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			statuses = append(statuses, frame.PseudoValue("status"))
			if frame.StreamEnded() {
				return statuses
			}
		case *http2.DataFrame:
			if frame.StreamEnded() {
				return statuses
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return statuses
		}
	}
}

// TestWebSocketFlood tests that one client has its part of the WebSockets of a route, that another client is served, and that
// messages which a sandbox does not read are not kept in memory.
func TestWebSocketFlood(t *testing.T) {
	const messages = 64 << 20 // bytes that the flood tries to send
	hold := make(chan struct{})
	var open atomic.Int64
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ws" {
			return
		}
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		open.Add(1)
		<-hold
	}), nil)
	defer close(hold)
	w.configure(caisson.RouteSpec{Host: "a.example"})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var all []net.Conn
	defer func() {
		for _, c := range all {
			c.Close()
		}
	}()
	refused := 0
	for range defaultMaxClient + 20 {
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
		c.SetDeadline(time.Now().Add(limit))
		io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		switch res.StatusCode {
		case http.StatusSwitchingProtocols:
		case http.StatusTooManyRequests:
			refused++
		default:
			t.Fatalf("status %d", res.StatusCode)
		}
	}
	if open.Load() != defaultMaxClient || refused != 20 {
		t.Errorf("%d are open, %d were refused", open.Load(), refused)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var wait sync.WaitGroup
	var sent atomic.Int64
	for _, c := range all[:defaultMaxClient] {
		wait.Go(func() {
			c.SetDeadline(time.Now().Add(2 * time.Second))
			for b := make([]byte, 64<<10); sent.Load() < messages; {
				n, err := c.Write(b)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		})
	}
	// Meanwhile another client is served.
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	other := &http.Client{Transport: &http.Transport{DialContext: d.DialContext, DisableKeepAlives: true}}
	for range 20 {
		res, err := other.Do(w.request(http.MethodGet, "a.example", "/", nil).WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Errorf("another client: %d", res.StatusCode)
		}
	}
	wait.Wait()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 8<<20 {
		t.Errorf("%d bytes of memory for %d bytes that are not read", grown, sent.Load())
	}
}
