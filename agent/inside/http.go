package inside

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// How long a server may take.
const (
	dialTime = 20 * time.Second
	sendTime = time.Minute
	headTime = 10 * time.Minute // a model may think for long before it says anything
	idleTime = 5 * time.Minute  // between two pieces of an answer
)

const (
	maxHead    = 64 << 10 // bytes of a response's headers
	maxInterim = 8        // responses of status 1xx before the real one
)

// server is a plain HTTP server on the wire.
type server struct {
	host string // for the Host header
	addr string // with a port
	path string // before that of a request; "" or begins with a slash
}

// parseServer reads http://HOST[:PORT][/PATH].
func parseServer(url string) (server, error) {
	rest, ok := strings.CutPrefix(url, "http://")
	if !ok {
		return server{}, fmt.Errorf("%.200q does not begin with http://, and nothing else is spoken here", url)
	}
	host, path, _ := strings.Cut(rest, "/")
	s := server{host: host, addr: host, path: strings.TrimRight("/"+path, "/")}
	if _, _, err := net.SplitHostPort(host); err != nil {
		s.addr = net.JoinHostPort(strings.Trim(host, "[]"), "80")
	}
	if host == "" || strings.ContainsFunc(rest, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("@?#", r) }) {
		return server{}, fmt.Errorf("%.200q is not as http://HOST:PORT/PATH", url)
	}
	return s, nil
}

// response is the beginning of an answer. Its body has to be closed.
type response struct {
	status int
	header map[string]string // by lower-case name; the first value of each
	body   io.ReadCloser
	conn   *stream
}

// hurry gives the rest of the body so much time.
func (r *response) hurry(d time.Duration) {
	if r.conn.end.IsZero() {
		r.conn.end = time.Now().Add(d)
	}
}

// errNetwork marks what may go better another time.
var errNetwork = errors.New("the connection failed")

// do sends a request, with these lines of headers besides its own, on a connection of its own, and returns the beginning of the answer.
// Redirections are not followed. When ctx ends, reading the body fails.
func (s server) do(ctx context.Context, method, path string, body []byte, header ...string) (*response, error) {
	d := net.Dialer{Timeout: dialTime}
	conn, err := d.DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNetwork, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	c := &stream{conn: conn, stop: stop, idle: headTime}
	r, err := s.exchange(c, method, path, body, header)
	if err != nil {
		c.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("%w: %w", errNetwork, err)
	}
	c.idle = idleTime
	return r, nil
}

func (s server) exchange(c *stream, method, path string, body []byte, header []string) (*response, error) {
	head := method + " " + s.path + path + " HTTP/1.1\r\nHost: " + s.host + "\r\nConnection: close\r\nUser-Agent: caisson-agent\r\nAccept: */*\r\n"
	for _, line := range header {
		head += line + "\r\n"
	}
	if body != nil {
		head += "Content-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n"
	}
	c.conn.SetWriteDeadline(time.Now().Add(sendTime))
	_, sendErr := c.conn.Write(append([]byte(head+"\r\n"), body...))
	// A server that refuses a body may answer before it has read it.
	c.r = bufio.NewReaderSize(c, 32<<10)
	r, err := readHead(c.r)
	if err != nil {
		if sendErr != nil {
			return nil, sendErr
		}
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	r.conn = c
	content, err := bodyOf(r, c.r)
	if err != nil {
		return nil, err
	}
	r.body = struct {
		io.Reader
		io.Closer
	}{content, c}
	return r, nil
}

// stream is the connection of one request.
type stream struct {
	conn net.Conn
	r    *bufio.Reader
	stop func() bool
	idle time.Duration
	end  time.Time // when reading ends whatever comes; zero if it does not
}

// Read waits for as long as a silence may last.
func (c *stream) Read(p []byte) (int, error) {
	until := time.Now().Add(c.idle)
	if !c.end.IsZero() && c.end.Before(until) {
		until = c.end
	}
	c.conn.SetReadDeadline(until)
	return c.conn.Read(p)
}

func (c *stream) Close() error {
	c.stop()
	return c.conn.Close()
}

// readHead reads status and headers, and passes over interim responses.
func readHead(r *bufio.Reader) (*response, error) {
	left := maxHead
	for range maxInterim {
		status, err := readLine(r, &left)
		if err != nil {
			return nil, err
		}
		res := &response{header: map[string]string{}}
		if res.status, err = parseStatus(status); err != nil {
			return nil, err
		}
		for {
			field, err := readLine(r, &left)
			if err != nil {
				return nil, err
			}
			if field == "" {
				break
			}
			name, value, ok := strings.Cut(field, ":")
			if !ok || name == "" || strings.ContainsAny(name, " \t") {
				return nil, fmt.Errorf("%.40q is no header", field)
			}
			name = strings.ToLower(name)
			if _, again := res.header[name]; !again {
				res.header[name] = strings.Trim(value, " \t")
			}
		}
		if res.status >= 200 {
			return res, nil
		}
	}
	return nil, errors.New("there are only interim answers")
}

func parseStatus(line string) (int, error) {
	version, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	n, err := strconv.Atoi(code)
	if version != "HTTP/1.1" && version != "HTTP/1.0" || err != nil || n < 100 || n > 599 || len(code) != 3 || n == 101 {
		return 0, fmt.Errorf("%.40q is no status line of HTTP/1.1", line)
	}
	return n, nil
}

// readLine reads a line without its end, of at most *left bytes, and takes them off.
func readLine(r *bufio.Reader, left *int) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if *left -= len(part); *left < 0 {
			return "", errors.New("a line or the headers are too long")
		}
		line = append(line, part...)
		if err == bufio.ErrBufferFull {
			continue
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return "", err
		}
		return strings.TrimSuffix(string(line[:len(line)-1]), "\r"), nil
	}
}
