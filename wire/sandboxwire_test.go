package wire

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/report"
)

// TestStopSettlesLater checks that the removal of a wire does not wait long for a model call, and that the remaining reports are
// sent when the call has ended.
func TestStopSettlesLater(t *testing.T) {
	t.Parallel()
	told := make(chan []caisson.Decision, 1)
	w := &sandboxWire{}
	w.ctx, w.cancel = context.WithCancel(t.Context())
	var err error
	if w.report, err = report.New(report.Config{Deliver: func(list []caisson.Decision) { told <- list }}); err != nil {
		t.Fatal(err)
	}
	if !w.beginRequest() {
		t.Fatal("no request may begin")
	}
	w.stop(time.Millisecond, time.Minute)
	if w.ctx.Err() == nil || w.beginRequest() {
		t.Error("a wire that was stopped goes on")
	}
	w.report.Report(caisson.Decision{Kind: "request", Name: "late.example"})
	w.endRequest()
	if list := <-told; len(list) != 1 || list[0].Name != "late.example" {
		t.Errorf("%+v", list)
	}
}

// TestDetachDoesNotWaitForNames checks that pending DNS queries do not delay the removal of a wire, because the wire process
// handles one request at a time.
func TestDetachDoesNotWaitForNames(t *testing.T) {
	t.Parallel()
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ns := silent.LocalAddr().(*net.UDPAddr).AddrPort()
	w := newWorld(t, func(c *setup) {
		c.Settings = func(context.Context) (*caisson.GatewayConfig, error) {
			return &caisson.GatewayConfig{Nameservers: []netip.AddrPort{ns, ns, ns, ns}}, nil
		}
	})
	id := caisson.NewID(caisson.SandboxPrefix)
	spec := specOf(id)
	spec.Policy = caisson.Policy{Rules: []caisson.Rule{{Action: caisson.Allow, Host: "*.example"}}}
	netns, err := w.Attach(t.Context(), id, spec)
	if err != nil {
		t.Fatal(err)
	}
	defer netns.Close()
	var conn net.Conn
	if err := inside(t, netns, func() (err error) {
		conn, err = net.Dial("tcp", GatewayIPv4+":53")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := (&dns.Conn{Conn: conn}).WriteMsg(new(dns.Msg).SetQuestion("a.example.", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := silent.ReadFrom(make([]byte, 1500)); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := w.Detach(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 4*time.Second { // the lookup takes five
		t.Errorf("detach took %v", took)
	}
}
