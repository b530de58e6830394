// Command caller makes requests from inside a sandbox. It reads them from standard input, one JSON object a line, makes all of
// them at once, and writes what came of each as it comes.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// A request is one to make. Raw, if there is one, is sent as it is to Address.
type request struct {
	ID     string            `json:"id"`
	Method string            `json:"method"`
	URL    string            `json:"url"`
	Header map[string]string `json:"header"`
	Body   string            `json:"body"`
	Pad    int               `json:"pad"`   // spaces behind the body
	Leave  int               `json:"leave"` // go away after so many bytes of the answer
	Raw    string            `json:"raw"`

	Address string `json:"address"` // default the model gateway's
}

// An answer is what came of it.
type answer struct {
	ID     string        `json:"id"`
	Status int           `json:"status"`
	Header http.Header   `json:"header"`
	Body   string        `json:"body"`
	Error  string        `json:"error"`
	Took   time.Duration `json:"took"`
}

// patience is how long a request may take.
const patience = time.Minute

// dialer soon notices when there is nobody at the other end any more.
var dialer = &net.Dialer{KeepAlive: time.Second}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "caller:", err)
		os.Exit(1)
	}
}

func run() error {
	var list []request
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<22)
	for in.Scan() {
		var r request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			return err
		}
		list = append(list, r)
	}
	if err := in.Err(); err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DialContext: dialer.DialContext}}
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for _, r := range list {
		wg.Go(func() {
			<-start
			began := time.Now()
			a := r.make(client)
			a.ID, a.Took = r.ID, time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			out.Encode(a)
		})
	}
	close(start)
	wg.Wait()
	return nil
}

func (r *request) make(client *http.Client) (a answer) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if r.Raw != "" {
		return r.send(ctx)
	}
	body := io.MultiReader(strings.NewReader(r.Body), bytes.NewReader(bytes.Repeat([]byte(" "), r.Pad)))
	method := r.Method
	if method == "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, r.URL, body)
	if err != nil {
		a.Error = err.Error()
		return a
	}
	req.ContentLength = int64(len(r.Body) + r.Pad)
	req.Header.Set("Content-Type", "application/json")
	for k, v := range r.Header {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		a.Error = err.Error()
		return a
	}
	return r.read(resp)
}

// send writes Raw and reads whatever answer there is.
func (r *request) send(ctx context.Context) (a answer) {
	if r.Address == "" {
		r.Address = "llm.caisson.internal:80"
	}
	c, err := dialer.DialContext(ctx, "tcp", r.Address)
	if err != nil {
		a.Error = err.Error()
		return a
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	c.SetDeadline(deadline)
	go io.WriteString(c, r.Raw) // the answer may come before all of it was taken
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		a.Error = err.Error()
		return a
	}
	return r.read(resp)
}

func (r *request) read(resp *http.Response) (a answer) {
	defer resp.Body.Close()
	a.Status, a.Header = resp.StatusCode, resp.Header
	from := io.Reader(resp.Body)
	if r.Leave > 0 {
		from = io.LimitReader(from, int64(r.Leave))
	}
	body, err := io.ReadAll(from)
	a.Body = string(body)
	if err != nil {
		a.Error = err.Error()
	}
	return a
}
