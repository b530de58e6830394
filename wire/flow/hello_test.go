package flow

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// clientHello returns the first message of Go's client.
func clientHello(t testing.TB, name string) []byte {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	near, far := net.Pipe()
	go func() {
		defer near.Close()
		tls.Client(near, &tls.Config{ServerName: name, InsecureSkipVerify: name == ""}).HandshakeContext(ctx)
	}()
	defer far.Close()
	defer cancel()
	header := make([]byte, 5)
	if _, err := io.ReadFull(far, header); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(header[3:]))
	if _, err := io.ReadFull(far, body); err != nil {
		t.Fatal(err)
	}
	return append(header, body...)
}

// records spreads a handshake over records of at most size bytes.
func records(hello []byte, size int) (out []byte) {
	for body := hello[5:]; len(body) > 0; {
		n := min(size, len(body))
		out = append(out, 0x16, 3, 1, byte(n>>8), byte(n))
		out = append(out, body[:n]...)
		body = body[n:]
	}
	return out
}

// withExtension appends an extension to the ClientHello in one record.
func withExtension(hello []byte, kind uint16, data []byte) []byte {
	out := bytes.Clone(hello)
	out = binary.BigEndian.AppendUint16(out, kind)
	out = binary.BigEndian.AppendUint16(out, uint16(len(data)))
	out = append(out, data...)
	more := len(out) - len(hello)
	c := cursor{hello[9:], true}
	c.take(34)
	c.vector(1)
	c.vector(2)
	c.vector(1)
	at := len(hello) - len(c.rest) // position of the length of all extensions
	binary.BigEndian.PutUint16(out[at:], binary.BigEndian.Uint16(hello[at:])+uint16(more))
	binary.BigEndian.PutUint16(out[3:], uint16(len(out)-5))
	binary.BigEndian.PutUint16(out[7:], uint16(len(out)-9)) // the lower two of three bytes
	return out
}

func sni(names ...string) (data []byte) {
	for _, n := range names {
		data = append(data, 0, byte(len(n)>>8), byte(len(n)))
		data = append(data, n...)
	}
	return append([]byte{byte(len(data) >> 8), byte(len(data))}, data...)
}

// speeches are the first bytes of connections, with the expected protocol.
func speeches(t testing.TB) map[string]struct {
	text []byte
	lang appProtocol
	name string
} {
	hello, nameless := clientHello(t, "Good.example"), clientHello(t, "")
	type speech = struct {
		text []byte
		lang appProtocol
		name string
	}
	text := func(s string, l appProtocol) speech { return speech{[]byte(s), l, ""} }
	return map[string]speech{
		"hello":             {hello, protoTLS, "good.example"},
		"without name":      {nameless, protoTLS, ""},
		"in small records":  {records(hello, 1), protoTLS, "good.example"},
		"in three records":  {records(hello, 200), protoTLS, "good.example"},
		"name added":        {withExtension(nameless, 0, sni("x.example")), protoTLS, "x.example"},
		"two extensions":    {withExtension(hello, 0, sni("x.example")), protoDenied, ""},
		"two names":         {withExtension(nameless, 0, sni("x.example", "y.example")), protoDenied, ""},
		"empty name":        {withExtension(nameless, 0, sni("")), protoDenied, ""},
		"empty list":        {withExtension(nameless, 0, sni()), protoDenied, ""},
		"early data":        {append(bytes.Clone(hello), 0x17, 3, 3, 0, 1, 0), protoTLS, "good.example"},
		"cut":               {hello[:len(hello)-1], protoUndecided, ""},
		"other message":     {append([]byte{0x16, 3, 1, 0, 4}, 2, 0, 0, 0), protoDenied, ""},
		"empty record":      text("\x16\x03\x01\x00\x00", protoDenied),
		"large record":      text("\x16\x03\x01\x50\x00", protoDenied),
		"large hello":       {append([]byte{0x16, 3, 1, 0, 4}, 1, 2, 0, 0), protoDenied, ""},
		"bad inside":        {append([]byte{0x16, 3, 1, 0, 5}, 1, 0, 0, 1, 0), protoDenied, ""},
		"alert":             text("\x15\x03\x01\x00\x02\x01\x00", protoDenied),
		"data":              text("\x17\x03\x03", protoDenied),
		"cipher spec":       text("\x14", protoDenied),
		"odd version":       text("\x16\x02", protoDenied),
		"vertical tab":      text("GET\v/\vHTTP/1.1\r\n", protoHTTP),
		"form feed":         text("\fGET\f/", protoHTTP),
		"carriage return":   text("GET\r/", protoHTTP),
		"separator":         text("\x1cGET\x1f/", protoHTTP),
		"latin-1 space":     text("\x85GET\xa0/", protoHTTP),
		"xml":               text("<?xml version", protoOther),
		"get":               text("GET / HTTP/1.1\r\n", protoHTTP),
		"get at once":       text("GET ", protoHTTP),
		"tab":               text("GET\t/", protoHTTP),
		"spaces first":      text(" \r\n\t GET /", protoHTTP),
		"http/2":            text("PRI * HTTP/2.0\r\n\r\n", protoHTTP),
		"odd method":        text("FETCH /x HTTP/1.1\r\n", protoHTTP),
		"lower case":        text("get / http/1.1\n", protoHTTP),
		"not yet":           text("FETCH /x HTTP/1.1", protoUndecided),
		"memcached":         text("get key\r\n", protoOther),
		"smtp":              text("EHLO there\r\n", protoOther),
		"ssh":               text("SSH-2.0-OpenSSH_10 x\r\n", protoOther),
		"redis":             text("*1\r\n$4\r\nPING\r\n", protoOther),
		"postgres":          text("\x00\x00\x00\x08\x04\xd2\x16\x2f", protoOther),
		"proxy":             text("PROXY TCP4 ", protoDenied),
		"proxy 2":           text("\r\n\r\n\x00\r\nQUIT\n\x21", protoDenied),
		"proxy 2 cut":       text("\r\n\r\n\x00\r\nQU", protoUndecided),
		"empty":             text("", protoUndecided),
		"only white space":  text("\r\n", protoUndecided),
		"long word":         text(strings.Repeat("A", maxSniff), protoDenied),
		"long line":         text("FETCH "+strings.Repeat("A", maxSniff), protoDenied),
		"long white space":  text(strings.Repeat("\n", maxSniff), protoDenied),
		"method in a line":  text("x y\r\nGET / HTTP/1.1\r\n", protoOther),
		"many tiny records": {records(append(make([]byte, 5), append([]byte{1, 0, 0xff, 0}, make([]byte, 60000)...)...), 1)[:maxSniff], protoDenied, ""},
	}
}

func TestEar(t *testing.T) {
	for name, s := range speeches(t) {
		for _, step := range []int{len(s.text) + 1, 1} {
			e, got := &sniffer{}, protoUndecided
			for i := 0; i < len(s.text) && got == protoUndecided; i += step {
				e.data = append(e.data, s.text[i:min(i+step, len(s.text))]...)
				got = e.detect()
			}
			if got != s.lang || e.name != s.name || (got == protoDenied) != (e.reason != "") {
				t.Errorf("%s, %d bytes at a time: %v, name %q, reason %q; want %v, %q", name, step, got, e.name, e.reason, s.lang, s.name)
			}
		}
	}
}

func TestFirstLine(t *testing.T) {
	for _, c := range []struct {
		text string
		want bool
	}{
		{"(GET) / HTTP/1.1\r\n", true},
		{"<x> http/1.0", true},
		{"\r\n (GET) / HTTP/1.1\r\n", true},
		{"<x>\nGET / HTTP/1.1", false},
		{"\xc3\x89 / HTTP/1.1\r\n", true},
		{"\x05\x01\x00 / HTTP/1.1\r\n", false},
		{"(" + strings.Repeat("a", maxSniff) + strings.Repeat("b", 8) + "HTTP/", true},
		{"(HTTP-1.1", false},
	} {
		for _, step := range []int{len(c.text), 1} {
			if len(c.text) > maxSniff && step == 1 {
				continue // a long text, in small pieces
			}
			l, got := &firstLine{}, false
			for i := 0; i < len(c.text) && !got; i += step {
				got = l.isHTTP([]byte(c.text[i:min(i+step, len(c.text))]))
			}
			if got != c.want {
				t.Errorf("%.40q, %d bytes at a time: %v, want %v", c.text, step, got, c.want)
			}
		}
	}
}

// The result does not depend on how the bytes are split; and a handshake that Go's server accepts has the server name that it
// sees.
func FuzzEar(f *testing.F) {
	for _, s := range speeches(f) {
		if len(s.text) < 4096 {
			f.Add(s.text, uint16(1))
			f.Add(s.text, uint16(7))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, step uint16) {
		if len(text) > maxSniff {
			return
		}
		whole := &sniffer{data: text}
		want := whole.detect()
		parts, got, heard := &sniffer{}, protoUndecided, 0
		for heard < len(text) && got == protoUndecided {
			next := min(heard+max(int(step), 1), len(text))
			parts.data = append(parts.data, text[heard:next]...)
			heard = next
			got = parts.detect()
		}
		// A part may already be enough to refuse it.
		if got != want && !(got == protoDenied || want == protoDenied) || got == protoTLS && want == protoTLS && parts.name != whole.name {
			t.Errorf("in parts %v %q, as a whole %v %q", got, parts.name, want, whole.name)
		}
		if want != protoTLS {
			return
		}
		if name, ok := goServerName(text); ok && !strings.EqualFold(name, whole.name) {
			t.Errorf("Go's server sees %q, we %q", name, whole.name)
		}
	})
}

// goServerName returns the server name that Go's server finds in hello.
func goServerName(hello []byte) (name string, ok bool) {
	conn := tls.Server(&script{bytes.NewReader(hello)}, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name, ok = h.ServerName, true
		return nil, io.EOF
	}})
	conn.Handshake()
	return name, ok
}

// A script is a connection that sends predefined data and receives nothing.
type script struct{ io.Reader }

func (script) Write(p []byte) (int, error)      { return len(p), nil }
func (script) Close() error                     { return nil }
func (script) LocalAddr() net.Addr              { return nil }
func (script) RemoteAddr() net.Addr             { return nil }
func (script) SetDeadline(time.Time) error      { return nil }
func (script) SetReadDeadline(time.Time) error  { return nil }
func (script) SetWriteDeadline(time.Time) error { return nil }

func TestTLS(t *testing.T) {
	good, bad := clientHello(t, "good.example"), clientHello(t, "bad.example")
	for _, c := range []struct {
		name   string
		hello  []byte
		step   int
		reason string // "" if it is relayed
	}{
		{"good", good, 1 << 20, ""},
		{"one byte at a time", good, 1, ""},
		{"small records", records(good, 3), 100, ""},
		{"another name", bad, 1 << 20, "no rule"},
		{"another name in parts", records(bad, 1), 1, "no rule"},
		{"never resolved", clientHello(t, "elsewhere.example"), 1 << 20, "has not answered"},
		{"no name", clientHello(t, ""), 1 << 20, "no server name"},
		{"not a name", withExtension(clientHello(t, ""), 0, sni("good.example\x00.bad")), 1 << 20, "not a name"},
		{"two names", withExtension(good, 0, sni("bad.example")), 1 << 20, "malformed"},
		{"http", []byte("GET / HTTP/1.1\r\nHost: good.example\r\n\r\n"), 1 << 20, "only TLS"},
		{"alert first", append([]byte{0x15, 3, 1, 0, 2, 1, 90}, bad...), 1 << 20, "before the ClientHello"},
		{"odd version", append([]byte{0x16, 2}, bad[2:]...), 1 << 20, "version of the TLS record"},
		{"ssh", []byte("SSH-2.0-x\r\n"), 1 << 20, "only TLS"},
		{"cut", good[:100], 1 << 20, "ended within its first words"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, port := range []string{"443", "8443"} {
				if port == "8443" && c.reason == "only TLS" || port == "8443" && c.name == "cut" {
					continue
				}
				w := newWorld(t)
				w.listen("192.0.2.1:"+port, echo)
				w.resolved("192.0.2.1", "good.example", "bad.example")
				w.policy(allowName("good.example"))
				conn := w.mustDial("192.0.2.1:" + port)
				for rest := c.hello; len(rest) > 0; {
					n := min(c.step, len(rest))
					if _, err := conn.Write(rest[:n]); err != nil {
						break // refused before all was sent
					}
					rest = rest[n:]
				}
				conn.CloseWrite()
				got, err := io.ReadAll(conn)
				if c.reason != "" {
					if len(got) != 0 {
						t.Errorf("%d bytes were carried", len(got))
					}
					w.reportedDenied("request", c.reason)
				} else if err != nil || !bytes.Equal(got, c.hello) {
					t.Errorf("%d of %d bytes were carried, %v", len(got), len(c.hello), err)
				}
				conn.Close()
				eventually(t, w.empty)
			}
		})
	}
}

// A connection to a name that is no longer allowed is reset.
func TestTLSRecheck(t *testing.T) {
	w := newWorld(t)
	w.listen("192.0.2.1:443", echo)
	w.resolved("192.0.2.1", "good.example", "also.example")
	w.policy(allowName("good.example", "also.example"))
	conns := map[string]net.Conn{}
	for _, n := range []string{"good.example", "also.example"} {
		c := w.mustDial("192.0.2.1:443")
		wantEcho(t, c, string(clientHello(t, n)))
		conns[n] = c
	}
	w.policy(allowName("good.example"))
	wantEnd(t, conns["also.example"])
	wantEcho(t, conns["good.example"], "more")
}
