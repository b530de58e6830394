package ingress

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestMatch(t *testing.T) {
	w := newWorld(t, mirror, nil)
	other := caisson.NewID(caisson.SandboxPrefix)
	w.configure(
		caisson.RouteSpec{Host: "a.example", Port: 1}, caisson.RouteSpec{Host: "a.example", Path: "/api", Port: 2},
		caisson.RouteSpec{Host: "a.example", Path: "/api/v2", Port: 3, StripPrefix: true}, caisson.RouteSpec{Path: "/p", Port: 4},
		caisson.RouteSpec{Host: "xn--bcher-kva.example", Port: 5}, caisson.RouteSpec{Host: "only.example", Path: "/x", Port: 6},
		caisson.RouteSpec{Host: "a.example", Path: "/admin", Port: 7, Auth: caisson.RouteAuth{Kind: caisson.RouteAuthBearer, Hashes: []string{hash("t")}}},
	)
	var dialled atomic.Int64
	dial := Dial(func(_ context.Context, d caisson.IngressDial) (net.Conn, error) {
		for i, r := range w.routes {
			if r.ID == d.Route {
				dialled.Store(int64(w.routes[i].Spec.Port))
			}
		}
		return net.Dial("tcp", w.guest.Addr().String())
	})
	w.dial.Store(&dial)
	for _, c := range []struct {
		host, path string
		port       int    // 0: status, without a connection
		status     int    // 0: 200
		sees       string // path; "": path
	}{
		{host: "a.example", path: "/", port: 1},
		{host: "A.eXample:8080", path: "/", port: 1},
		{host: "a.example.", path: "/", port: 1},
		{host: "a.example.:80", path: "/", port: 1},
		{host: "a.example", path: "/api", port: 2},
		{host: "a.example", path: "/api/", port: 2},
		{host: "a.example", path: "/apix", port: 1},
		{host: "a.example", path: "/a%70i/x", port: 2, sees: "/a%70i/x"},
		{host: "a.example", path: "/api/v2", port: 3, sees: "/"},
		{host: "a.example", path: "/api/v2/x%2Fy?q", port: 3, sees: "/x%2Fy"},
		{host: "a.example", path: "/api/v%32/x", status: 400},
		{host: "a.example", path: "/api/../admin", status: 400},
		{host: "a.example", path: "/api/%2e%2e/admin", status: 400},
		{host: "a.example", path: "/api%2f..%2fadmin", status: 400},
		{host: "a.example", path: "/api/..;x/admin", status: 400},
		{host: "a.example", path: "/api/..%5cadmin", status: 400},
		{host: "a.example", path: "//admin", status: 401},
		{host: "a.example", path: "/admin;x/y", status: 400},
		{host: "a.example", path: "/admin%3bx/y", status: 400},
		{host: "a.example", path: "/api;x/y", status: 400},
		{host: "a.example", path: "/;x/admin", status: 400},
		{host: "a.example", path: "/;/admin", status: 400},
		{host: "a.example", path: "/api/x;y", port: 2},
		{host: "a.example", path: "/x;/api", port: 1},
		{host: "only.example", path: "/x;y", status: 400},
		{host: "a.example", path: "/%2fadmin", status: 401},
		{host: "a.example", path: "/%61dmin/", status: 401},
		{host: domain, path: "/p/x", port: 4},
		{host: domain, path: "/", status: 404},
		{host: "xn--bcher-kva.example", path: "/", port: 5},
		{host: "XN--BCHER-KVA.example", path: "/", port: 5},
		{host: "bücher.example", path: "/", status: 400},
		{host: "only.example", path: "/x", port: 6},
		{host: "only.example", path: "/", status: 404},
		{host: "b.a.example", path: "/", status: 404},
		{host: "127.0.0.1", path: "/", status: 404},
		{host: "[::1]", path: "/", status: 404},
		{host: "a.example:x", path: "/", status: 400},
		{host: fmt.Sprintf("3000-%s.%s", other, domain), path: "/", status: 401},
		{host: fmt.Sprintf("03000-%s.%s", other, domain), path: "/", status: 404},
		{host: fmt.Sprintf("0-%s.%s", other, domain), path: "/", status: 404},
		{host: fmt.Sprintf("65536-%s.%s", other, domain), path: "/", status: 404},
		{host: fmt.Sprintf("x.3000-%s.%s", other, domain), path: "/", status: 404},
	} {
		dialled.Store(0)
		w.upstreams.transport.CloseIdleConnections()
		w.Drop(sandboxID)
		statuses := w.raw("GET " + c.path + " HTTP/1.1\r\nHost: " + c.host + "\r\nConnection: close\r\n\r\n")
		want := c.status
		if want == 0 {
			want = 200
		}
		// The parser of net/http refuses some hosts before a route is looked for.
		if len(statuses) != 1 || statuses[0] != want && !(want == 400 && statuses[0] == 404) || int(dialled.Load()) != c.port {
			t.Errorf("%s%s: statuses %v, port %d, want %d, port %d", c.host, c.path, statuses, dialled.Load(), want, c.port)
		}
		if c.sees != "" {
			if _, body := w.get(c.host, c.path); parseSeen(t, body).Path != c.sees {
				t.Errorf("%s%s: the sandbox sees %s", c.host, c.path, body)
			}
		}
	}
}
