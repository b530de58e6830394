package report

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// aboutText is the page that describes the wire to the programs and agents in its sandbox.
const aboutText = `This is the wire of a Caisson sandbox: everything that leaves the sandbox goes through it.
A policy says which names and addresses can be reached. All others are refused at once; trying again does not help.
What was refused lately, why, and what to do: http://caisson.internal/why (?host=NAME for one host, ?format=json for JSON)
Models, if they are granted to this sandbox: http://llm.caisson.internal
Git repositories, if any are granted to this sandbox: git clone http://git.caisson.internal/NAME
Only the operator, outside of the sandbox, can change the policy: caisson policy show %s
`

// WhyHandler serves http://caisson.internal to the sandbox with this id: / describes the wire, and /why lists the recent refusals
// that recent returns, the latest first. explain, which may be nil, returns the policy's current verdict on a host, which may be
// written in any way.
func WhyHandler(sandbox string, recent func() []caisson.Decision, explain func(host string) caisson.Verdict) http.Handler {
	w := whyServer{sandbox, recent, explain}
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(rw http.ResponseWriter, r *http.Request) { send(rw, "text/plain", fmt.Sprintf(aboutText, sandbox)) })
	mux.HandleFunc("/why", w.serve)
	mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		refuse(rw, http.StatusNotFound, "there are only / and /why here")
	})
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			rw.Header().Set("Allow", "GET, HEAD")
			refuse(rw, http.StatusMethodNotAllowed, "only GET and HEAD")
			return
		}
		mux.ServeHTTP(rw, r)
	})
}

// A whyServer serves http://caisson.internal/why to one sandbox: what was refused to it recently, and why.
type whyServer struct {
	sandbox string                            // id of the wire's sandbox
	recent  func() []caisson.Decision         // returns the recent refusals, the latest first
	explain func(host string) caisson.Verdict // returns the policy's current verdict on a host; may be nil
}

// A page is the content of http://caisson.internal/why: what was refused to the sandbox recently, and why.
type page struct {
	Host    string           `json:"host,omitempty"` // the host that the request asks about; "" for all
	Now     *caisson.Verdict `json:"now,omitempty"`  // the policy's current verdict on Host
	Refused []refusal        `json:"refused"`        // recent refusals that concern Host, the latest first
}

// A refusal is an entry of the page: a refused name, connection or request.
type refusal struct {
	caisson.Decision
	Command string `json:"ask"` // a command with which the operator can examine the refusal
}

// serve answers a request for http://caisson.internal/why with the recent refusals and their reasons, as text or JSON.
func (w whyServer) serve(rw http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	p := page{Host: trimPort(query.Get("host")), Refused: []refusal{}}
	if len(p.Host) > maxText {
		refuse(rw, http.StatusBadRequest, "host: too long")
		return
	}
	for _, d := range w.recent() {
		if p.Host == "" || concerns(d, p.Host) {
			p.Refused = append(p.Refused, refusal{d, w.command(d)})
		}
	}
	if p.Host != "" && w.explain != nil {
		v := w.explain(p.Host)
		p.Now = &v
	}
	if query.Get("format") != "json" && !strings.Contains(r.Header.Get("Accept"), "application/json") {
		send(rw, "text/plain", p.text())
		return
	}
	b, err := json.Marshal(p)
	if err != nil {
		refuse(rw, http.StatusInternalServerError, "the page cannot be encoded")
		return
	}
	send(rw, "application/json", safetext.EscapeJSON(string(b))+"\n")
}

// text returns the page as text, with one line for each refusal.
func (p page) text() string {
	var b strings.Builder
	if p.Now != nil {
		state := "refused"
		if p.Now.Allowed {
			state = "allowed"
		}
		fmt.Fprintf(&b, "%s is now %s: %s\n", safetext.Escape(p.Host), state, safetext.Escape(p.Now.Reason))
	}
	if len(p.Refused) == 0 {
		b.WriteString("Nothing was refused lately.\n")
	}
	for _, d := range p.Refused {
		times := "once"
		if d.Count > 1 {
			times = fmt.Sprintf("%d times since", d.Count)
		}
		fmt.Fprintf(&b, "%s  refused %s  %s: %s; ask the operator to run: %s\n",
			d.At.UTC().Format(time.RFC3339), times, safetext.Escape(subject(d.Decision)), safetext.Escape(d.Reason), d.Command)
	}
	return b.String()
}

// subject describes the subject of a refusal: "name example.com", "flow example.com 192.0.2.1:443 tcp".
func subject(d caisson.Decision) string {
	var words []string
	for _, s := range []string{d.Kind, d.Name, d.Address, d.Protocol} {
		if s != "" {
			words = append(words, s)
		}
	}
	return strings.Join(words, " ")
}

// command returns a command with which the operator can examine d. An operator may copy it into a shell, so it includes no
// characters from a guest that are special to a shell.
func (w whyServer) command(d caisson.Decision) string {
	explain := "caisson policy explain " + w.sandbox
	target := d.Address
	if d.Name != "" {
		target = d.Name
		if a, err := netip.ParseAddrPort(d.Address); err == nil {
			target = fmt.Sprintf("%s:%d", d.Name, a.Port())
		}
	}
	plain := func(c rune) bool {
		return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.ContainsRune("._-:[]*", c)
	}
	if target == "" || target[0] == '-' || strings.ContainsFunc(target, func(c rune) bool { return !plain(c) }) {
		return explain
	}
	if d.Protocol == "udp" {
		target += "/udp"
	}
	if strings.ContainsAny(target, "[]*") {
		target = "'" + target + "'"
	}
	return explain + " " + target
}

// trimPort returns the host of s, which is HOST, HOST:PORT or an address, in lower case.
func trimPort(s string) string {
	if host, _, err := net.SplitHostPort(s); err == nil {
		s = host
	}
	return strings.ToLower(strings.Trim(strings.TrimSuffix(s, "."), "[]"))
}

// concerns reports whether d is about host or a name below it.
func concerns(d caisson.Decision, host string) bool {
	name := strings.ToLower(d.Name)
	return name == host || strings.HasSuffix(name, "."+host) || trimPort(d.Address) == host
}

// send sends body as the answer, which must not be cached.
func send(rw http.ResponseWriter, contentType, body string) {
	h := rw.Header()
	h.Set("Content-Type", contentType+"; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	_, _ = rw.Write([]byte(body)) // fails only if the connection has ended
}

// refuse answers with an HTTP error and the text why.
func refuse(rw http.ResponseWriter, status int, why string) {
	http.Error(rw, why, status)
}
