package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// answer is the response to every request: a small response of OpenAI's chat API.
const answer = `{"id":"chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT","object":"chat.completion","created":1741569952,"model":"bench",` +
	`"choices":[{"index":0,"message":{"role":"assistant","content":"The test fails because the clock of the fixture is never ` +
	`advanced; call tick() before the assertion.","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],` +
	`"usage":{"prompt_tokens":412,"completion_tokens":21,"total_tokens":433,"prompt_tokens_details":{"cached_tokens":0},` +
	`"completion_tokens_details":{"reasoning_tokens":0}},"service_tier":"default"}`

// model answers every request on a connection with the same response of the chat API. It does as little as possible, because it
// uses the same processors as the measured programs.
func model(c net.Conn) error {
	r := bufio.NewReaderSize(c, 16<<10)
	reply := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer)
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return err
		}
		if _, err := c.Write(reply); err != nil {
			return err
		}
	}
}

// prompt returns the body of a request to the chat API as an agent makes it, of about 2 kB.
func prompt() []byte {
	turn := `{"role":"user","content":"` + strings.Repeat("Run the tests again and say what fails. ", 8) + `"},` +
		`{"role":"assistant","content":"` + strings.Repeat("One test of twelve fails:\\n", 12) + `"},`
	return []byte(`{"model":"bench","max_completion_tokens":1024,"messages":[{"role":"system","content":"You are a careful engineer."},` +
		strings.Repeat(turn, 3) + `{"role":"user","content":"Why?"}]}`)
}

// A chatClient makes calls of the chat API on one kept-alive connection. It avoids the overhead of a complete HTTP client.
type chatClient struct {
	conn    net.Conn
	r       *bufio.Reader // Reads responses from conn.
	request []byte        // The bytes of the request that every call sends.
}

// newChatClient returns a client that is connected to the HTTP server at the URL to.
func newChatClient(to string) (*chatClient, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, err
	}
	conn, err := dial(u)
	if err != nil {
		return nil, err
	}
	body := prompt()
	var b bytes.Buffer
	b.WriteString("POST " + u.Path + " HTTP/1.1\r\nHost: " + u.Host + "\r\nContent-Type: application/json\r\nAuthorization: Bearer none\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n")
	b.Write(body)
	return &chatClient{conn, bufio.NewReaderSize(conn, 16<<10), b.Bytes()}, nil
}

// dialled is the number of inherited descriptors that dial has used.
var dialled atomic.Int64

// dial connects to the server at a URL. For URLs with the scheme fd, it returns the inherited descriptors 3, 4 and so on as
// connections.
func dial(u *url.URL) (net.Conn, error) {
	if u.Scheme == "fd" {
		f := os.NewFile(uintptr(2+dialled.Add(1)), "connection")
		defer f.Close()
		return net.FileConn(f)
	}
	addr := u.Host
	if u.Port() == "" {
		addr = net.JoinHostPort(u.Hostname(), "80")
	}
	return net.Dial("tcp", addr)
}

// call makes one call, reads its response to the end and checks it.
func (c *chatClient) call() error {
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(`"total_tokens":433`)):
		return fmt.Errorf("the answer is %s: %.300s", resp.Status, body)
	case resp.Close:
		return errors.New("the connection is not kept alive")
	}
	return nil
}

// calls makes sequential calls at the URL to, and returns their durations in microseconds.
func calls(o options, to string) ([]float64, error) {
	c, err := newChatClient(to)
	if err != nil {
		return nil, err
	}
	defer c.conn.Close()
	return repeat(o, func() (time.Duration, error) {
		start := time.Now()
		err := c.call()
		return time.Since(start), err
	})
}

// rate makes calls at the URL to on o.conns connections concurrently, for o.duration, and returns the number of calls per second.
func rate(o options, to string) ([]float64, error) {
	type outcome struct {
		n   int
		err error
	}
	outcomes := make(chan outcome, o.conns)
	start := time.Now()
	for range o.conns {
		go func() {
			c, err := newChatClient(to)
			n := 0
			for err == nil { // At least one call is made, even on a slow machine.
				if err = c.call(); err == nil {
					n++
				}
				if time.Since(start) >= o.duration {
					break
				}
			}
			if c != nil {
				c.conn.Close()
			}
			outcomes <- outcome{n, err}
		}()
	}
	sum, errs := 0, []error(nil)
	for range o.conns {
		got := <-outcomes
		sum, errs = sum+got.n, append(errs, got.err)
	}
	return []float64{float64(sum) / time.Since(start).Seconds()}, errors.Join(errs...)
}
