package test_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// An attempt is one attempt of a sandbox to get out. The probe reads the fields with JSON names.
type attempt struct {
	ID     string `json:"id"`
	Do     string `json:"do"` // as in testdata/probe
	To     string `json:"to,omitempty"`
	Name   string `json:"name,omitempty"`
	Type   uint16 `json:"type,omitempty"`
	Class  uint16 `json:"class,omitempty"`
	Opcode int    `json:"opcode,omitempty"`
	TCP    bool   `json:"tcp,omitempty"`
	Data   string `json:"data,omitempty"`
	Count  int    `json:"count,omitempty"`
	Proto  int    `json:"proto,omitempty"`
	Frame  []byte `json:"frame,omitempty"`
	Split  bool   `json:"split,omitempty"` // Data is sent in several pieces.

	// why is the reason that the wire must record: part of a line "kind name address protocol: reason". It is "" for
	// packets that are dropped before the policy is checked, that never leave the sandbox, or that are answered without
	// a record: their failure is visible only from outside.
	why string
	or  string // An alternative to why; "" means none.
	// open means that the attempt must succeed. It is the control that shows that refusals are significant.
	open bool
}

// An outcome is the probe's result of an attempt.
type outcome struct {
	ID   string             `json:"id"`
	Open bool               `json:"open"`
	Got  string             `json:"got"`
	MS   int64              `json:"ms"`
	Why  []caisson.Decision `json:"why"`
}

// probe copies the probe to a sandbox.
func (h *host) probe(binary, sandbox string) {
	h.t.Helper()
	h.ok("cp", binary, sandbox+":/probe")
}

// attempts lets a sandbox make attempts, and checks that each is refused for the expected reason.
func (h *host) attempts(sandbox string, list []attempt) {
	h.t.Helper()
	var in bytes.Buffer
	for _, a := range list {
		if err := json.NewEncoder(&in).Encode(a); err != nil {
			h.t.Fatal(err)
		}
	}
	r := h.runWith(&in, "exec", "-i", sandbox, "--", "/probe")
	got := map[string]outcome{}
	for d := json.NewDecoder(strings.NewReader(r.stdout)); d.More(); {
		var o outcome
		if err := d.Decode(&o); err != nil {
			h.t.Fatalf("%v: %v", err, r)
		}
		got[o.ID] = o
	}
	if r.code != 0 {
		h.t.Errorf("%v", r)
	}
	for _, a := range list {
		o, ok := got[a.ID]
		if !ok {
			h.t.Errorf("%s: was not tried", a.ID)
			continue
		}
		var said []string
		for _, d := range o.Why {
			said = append(said, line(d))
		}
		recorded := a.why == "" || slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, a.why) || a.or != "" && strings.Contains(s, a.or) })
		switch {
		case o.Open != a.open:
			h.t.Errorf("%s: %s; want open %v", a.ID, o.Got, a.open)
		case !recorded:
			h.t.Errorf("%s: the wire says %q, want %q; got %s", a.ID, said, a.why, o.Got)
		case testing.Verbose():
			h.t.Logf("%s: %s (%d ms): %s", a.ID, o.Got, o.MS, strings.Join(said, "; "))
		}
	}
}

// TestPromise1Bypass tests a sandbox that may connect to one name and tries everything else. Each attempt is refused,
// with a recorded reason if the policy was checked, and only allowed packets are seen outside, on the uplink, on the
// local network and on the host's loopback interface.
func TestPromise1Bypass(t *testing.T) {
	w := newWorld(t)
	w.serve("--listen", "127.0.0.1:7070")
	w.ok("sandbox", "create", "--name", "other", "host")
	w.ok("exec", "-d", "other", "--", "perl", "-e", `use Socket; socket(S,PF_INET,SOCK_STREAM,0); bind(S,sockaddr_in(8080,INADDR_ANY)) or die; listen(S,5); accept(C,S) while 1`)
	w.ok("sandbox", "create", "--name", "a", "--allow", goodName+":80,443", "host")
	w.probe(buildProbe(t), "a")
	on := w.inside.listenAll(t, 7777)

	for _, family := range []struct {
		name string
		list []attempt
	}{
		// Controls are first, so that the wire has resolved the names of good's addresses.
		{"controls", controls()},
		{"addresses", addressAttempts()},
		{"host", hostAttempts(w)},
		{"names", nameAttempts()},
		{"other resolvers", resolverAttempts()},
		{"what is said", speechAttempts()},
		{"virtual hosts", gatewayAttempts()},
		{"packets", packetAttempts()},
		{"controls again", controls()},
	} {
		t.Run(family.name, func(t *testing.T) {
			outer := w.t
			w.t, w.host.t = t, t
			defer func() { w.t, w.host.t = outer, outer }()
			w.attempts("a", family.list)
			if v := on.visits(); len(v) > 0 {
				t.Errorf("a service of the host was visited: %s", strings.Join(v, "; "))
			}
			w.left(good()...)
		})
	}
	if got := w.resolver.questions(goodName+" A", goodName+" AAAA"); len(got) > 0 {
		t.Errorf("the name server was asked for %q", got)
	}
	w.recorded("a", "1.1.1.1:443", "169.254.169.254:80", "[64:ff9b::a9fe:a9fe]:80")
}

// good returns the packets that may leave.
func good() (list []string) {
	for _, addr := range []string{goodAddr4, goodAddr6} {
		list = append(list, "tcp "+net.JoinHostPort(addr, "80"), "tcp "+net.JoinHostPort(addr, "443"))
	}
	return list
}

// TestPromise1TakenOver tests that an attacker who controls gVisor, and so the wire's device, can send no frame that
// leads out of the policy.
func TestPromise1TakenOver(t *testing.T) {
	w := newWorld(t)
	w.serve()
	id := w.ok("sandbox", "create", "--name", "a", "--allow", goodName+":80,443", "host")
	pid := 0
	for p, args := range w.sandboxProcesses() {
		if strings.HasPrefix(args, "runsc-sandbox") && strings.Contains(args, id) {
			pid = p
		}
	}
	sentry := placeOf(t, pid)
	list := frames()
	if err := sentry.run(func() error { return sendFrames("eth0", list) }); err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		var e caisson.Explanation
		recorded := func() bool {
			e = shows[caisson.Explanation](w.host, "policy", "explain", "a")
			return slices.ContainsFunc(e.Recent, func(d caisson.Decision) bool { return strings.Contains(line(d), a.why) })
		}
		if a.why != "" {
			poll.Until(t, settle, recorded)
		}
	}
	e := shows[caisson.Explanation](w.host, "policy", "explain", "a")
	for _, d := range e.Recent {
		if !slices.ContainsFunc(list, func(a attempt) bool { return a.why != "" && strings.Contains(line(d), a.why) }) {
			t.Errorf("this should not have come as far as the policy: %s", line(d))
		}
	}
	w.left()
	w.recorded("a", badAddr4+":2010", "169.254.169.254:2012")
}

// line returns a decision in the form of attempt.why.
func line(d caisson.Decision) string {
	return strings.Join(strings.Fields(fmt.Sprint(d.Kind, " ", d.Name, " ", d.Address, " ", d.Protocol)), " ") + ": " + d.Reason
}

// sendFrames sends each frame unchanged on an interface.
func sendFrames(name string, list []attempt) error {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, a := range list {
		if err := unix.Sendto(fd, a.Frame, 0, &unix.SockaddrLinklayer{Ifindex: dev.Index, Halen: 6}); err != nil {
			return fmt.Errorf("%s: %w", a.ID, err)
		}
	}
	return nil
}

// recorded checks that refusals are recorded as events of the sandbox, at least one for each destination.
func (h *host) recorded(sandbox string, destinations ...string) {
	h.t.Helper()
	id := string(h.show(sandbox).ID)
	for _, to := range destinations {
		poll.Until(h.t, settle, func() bool {
			return slices.ContainsFunc(h.events(id, "300ms"), func(e caisson.Event) bool {
				return e.Type == "egress.denied" && (e.Data["address"] == to || e.Data["name"] == to) && e.Data["reason"] != ""
			})
		})
	}
}

// events returns the events of a sandbox that arrive within a time.
func (h *host) events(sandbox, within string) (list []caisson.Event) {
	h.t.Helper()
	r := h.run("events", "--for", within, "-o", "json", sandbox)
	for d := json.NewDecoder(strings.NewReader(r.stdout)); d.More(); {
		var e caisson.Event
		if err := d.Decode(&e); err != nil {
			h.t.Fatalf("%v: %v", err, r)
		}
		list = append(list, e)
	}
	return list
}

func controls() []attempt {
	tls := func(to string) attempt {
		return attempt{Do: "tls", To: net.JoinHostPort(to, "443"), Name: goodName, open: true}
	}
	list := []attempt{
		{Do: "get", To: "https://" + goodName + "/", open: true},
		{Do: "get", To: "http://" + goodName + "/", open: true},
		{Do: "dns", Name: goodName, open: true}, {Do: "dns", Name: goodName, Type: 28, open: true},
		{Do: "dns", Name: "GoOd.eXample.NET", TCP: true, open: true},
		tls(goodAddr4), tls(goodAddr6),
		{Do: "get", To: "http://caisson.internal/", open: true},
	}
	return numbered("control", list)
}

// numbered assigns IDs to attempts.
func numbered(prefix string, list []attempt) []attempt {
	for i := range list {
		a := &list[i]
		a.ID = strings.TrimSpace(fmt.Sprintf("%s %d %s %.60s %.40q %s", prefix, i, a.Do, a.To, a.Name, a.ID))
	}
	return list
}
