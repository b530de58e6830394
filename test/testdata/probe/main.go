// Command probe runs inside a sandbox and tries to get out. It reads attempts from standard input, one JSON object a line,
// and writes for each what came of it, and what the wire says about it at http://caisson.internal/why.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// An attempt is one way out to try.
type attempt struct {
	ID     string `json:"id"`
	Do     string `json:"do"`
	To     string `json:"to"`
	Name   string `json:"name"`
	Type   uint16 `json:"type"`
	Class  uint16 `json:"class"`
	Opcode int    `json:"opcode"`
	TCP    bool   `json:"tcp"`
	Data   string `json:"data"`
	Count  int    `json:"count"`
	Proto  int    `json:"proto"`
	Frame  []byte `json:"frame"`
	Split  bool   `json:"split"`
}

// An outcome is what came of it. Open means that somebody answered who should not have, or that something was
// established.
type outcome struct {
	ID   string    `json:"id"`
	Open bool      `json:"open"`
	Got  string    `json:"got"`
	MS   int64     `json:"ms"`
	Why  []refusal `json:"why"`
}

// A refusal is an entry of /why.
type refusal struct {
	Kind     string `json:"kind"`
	Reason   string `json:"reason"`
	Name     string `json:"name"`
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
	Count    int64  `json:"count"`
}

func (r refusal) key() refusal {
	r.Count = 0
	return r
}

// patience is how long an attempt waits for an answer.
const patience = 3 * time.Second

// quiet is how long it waits where no answer is the rule.
const quiet = 150 * time.Millisecond

func main() {
	if len(os.Args) > 1 {
		if err := flood(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "probe:", err)
			os.Exit(1)
		}
		return
	}
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	in.Buffer(nil, 1<<20)
	before, err := refusals()
	for in.Scan() && err == nil {
		var a attempt
		if err = json.Unmarshal(in.Bytes(), &a); err != nil {
			break
		}
		begin := time.Now()
		o := outcome{ID: a.ID}
		o.Open, o.Got = try(a)
		o.MS = time.Since(begin).Milliseconds()
		var after map[refusal]int64
		if after, err = refusals(); err != nil {
			break
		}
		for r, n := range after {
			if n > before[r] {
				r.Count = n - before[r]
				o.Why = append(o.Why, r)
			}
		}
		before = after
		err = out.Encode(o)
	}
	if err = errors.Join(err, in.Err()); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

// refusals asks the wire what it has refused lately, and how often.
func refusals() (map[refusal]int64, error) {
	// By address: names are for attempts to exhaust.
	req, err := http.NewRequest(http.MethodGet, "http://10.87.0.1/why?format=json", nil)
	if err != nil {
		return nil, err
	}
	req.Host = "caisson.internal"
	c := http.Client{Timeout: 2 * patience}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var page struct {
		Refused []refusal `json:"refused"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
		return nil, err
	}
	counts := map[refusal]int64{}
	for _, r := range page.Refused {
		counts[r.key()] = r.Count
	}
	return counts, nil
}

func try(a attempt) (open bool, got string) {
	switch a.Do {
	case "tcp":
		return connect(a)
	case "scan":
		return scan(a)
	case "udp":
		return send(a)
	case "dns":
		return ask(a)
	case "say":
		return say(a)
	case "tls":
		return handshake(a)
	case "get":
		return get(a)
	case "raw":
		return raw(a)
	case "frame":
		return frame(a)
	case "wait":
		return wait(a)
	case "unix":
		return unixSocket(a)
	default:
		return true, "unknown attempt " + a.Do
	}
}

func connect(a attempt) (bool, string) {
	limit := patience
	if a.Type == silent {
		limit = quiet
	}
	c, err := net.DialTimeout("tcp", a.To, limit)
	if err != nil {
		return false, short(err)
	}
	c.Close()
	return true, "connected"
}

// silent, as an attempt's type, says that nobody will answer, not even with a refusal.
const silent = 1

// scan connects to Count ports, from 1 on, less the one in Name.
func scan(a attempt) (bool, string) {
	var open []string
	for port := 1; port <= a.Count; port++ {
		if strings.Contains(","+a.Name+",", fmt.Sprintf(",%d,", port)) {
			continue
		}
		to := net.JoinHostPort(a.To, fmt.Sprint(port))
		if c, err := net.DialTimeout("tcp", to, patience); err == nil {
			c.Close()
			open = append(open, to)
		}
	}
	return len(open) > 0, "open: " + strings.Join(open, " ")
}

// send sends datagrams and waits for an answer.
func send(a attempt) (bool, string) {
	c, err := net.Dial("udp", a.To)
	if err != nil {
		return false, short(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("to whom it may concern")); err != nil {
		return false, short(err)
	}
	c.SetReadDeadline(time.Now().Add(quiet))
	n, err := c.Read(make([]byte, 1500))
	if err != nil {
		return false, short(err)
	}
	return true, fmt.Sprintf("%d bytes came back", n)
}

// wait returns when names are answered again.
func wait(a attempt) (bool, string) {
	for end := time.Now().Add(4 * patience); time.Now().Before(end); time.Sleep(quiet) {
		if addrs, err := net.LookupHost(a.Name); err == nil {
			return true, fmt.Sprint(addrs)
		}
	}
	return false, "names are not answered"
}

func unixSocket(a attempt) (bool, string) {
	c, err := net.Dial("unix", a.To)
	if err != nil {
		return false, short(err)
	}
	c.Close()
	return true, "connected"
}

// get fetches a URL and follows where it leads. What it got is the status and the end of the last answer.
func get(a attempt) (bool, string) {
	c := http.Client{Timeout: 2 * patience, Transport: trusting()}
	resp, err := c.Get(a.To)
	if err != nil {
		return false, short(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	return err == nil && resp.StatusCode < 400, fmt.Sprintf("%d %s", resp.StatusCode, b)
}

func short(err error) string {
	s := err.Error()
	return s[:min(len(s), 200)]
}
