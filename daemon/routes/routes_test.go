package routes

import (
	"context"
	"crypto/ed25519"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/sqlite/sqlitetest"
	"github.com/caisson-dev/caisson/wire/ingress/signedurl"
)

// A world is a core of routes whose sandboxes have states only.
type world struct {
	*Core
	t         *testing.T
	key       ed25519.PrivateKey
	refreshes atomic.Int64
	refuse    atomic.Pointer[error] // error of Refresh, which takes the table nevertheless, and of Resume
	inForce   atomic.Pointer[caisson.IngressConfig]

	mu      sync.Mutex
	list    map[caisson.ID]*caisson.Sandbox // guarded by mu
	resumes int                             // guarded by mu
	drops   int                             // guarded by mu
	dials   []string                        // guarded by mu
	uses    []caisson.IngressUse            // guarded by mu
	during  func()                          // called in Dial, without mu; guarded by mu
}

func newWorld(t *testing.T, s Settings) *world {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	store := sqlitetest.New(t)
	w := &world{t: t, key: key, list: map[caisson.ID]*caisson.Sandbox{}}
	w.Core = New(Config{
		Settings: s, Address: s.Listen, Key: key, Store: store.Routes(), Sandboxes: func() Sandboxes { return w }, Dialer: w, Wire: w, Events: quiet{},
		Used: func(id caisson.ID, active bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.uses = append(w.uses, caisson.IngressUse{Sandbox: id, Active: active})
		},
		Owner: func(_ context.Context, id caisson.ID) (string, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if sb := w.list[id]; sb != nil {
				return sb.Account, nil
			}
			return "", caisson.Errorf(caisson.NotFound, "no sandbox")
		},
	})
	t.Cleanup(func() { w.Close() })
	return w
}

type quiet struct{}

func (quiet) Publish(context.Context, string, string, string, map[string]string) {}
func (quiet) PublishAll(context.Context, []*caisson.Event)                       {}

// sandbox adds a sandbox.
func (w *world) sandbox(account string, s caisson.State) caisson.ID {
	w.mu.Lock()
	defer w.mu.Unlock()
	sb := &caisson.Sandbox{ID: caisson.NewID(caisson.SandboxPrefix), Account: account, State: s}
	w.list[sb.ID] = sb
	return sb.ID
}

func (w *world) setState(id caisson.ID, s caisson.State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list[id].State = s
}

// as returns the context of a token of an account.
func (w *world) as(account string) context.Context {
	return caisson.WithCaller(w.t.Context(), caisson.Caller{Account: account})
}

// local returns the context of the administrator.
func (w *world) local() context.Context {
	return caisson.WithCaller(w.t.Context(), caisson.Caller{Account: caisson.LocalAccount, Local: true})
}

func (w *world) Get(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	sb := w.list[caisson.ID(ref)]
	if sb == nil || sb.Account != caller.Account {
		return nil, caisson.Errorf(caisson.NotFound, "no sandbox %s", ref)
	}
	now := *sb
	return &now, nil
}

func (w *world) Resume(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	sb, err := w.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	if err := w.refuse.Load(); err != nil {
		return nil, *err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.list[sb.ID].State; s != caisson.Paused && s != caisson.Suspended {
		return nil, caisson.Errorf(caisson.Conflict, "it is %s", s)
	}
	w.resumes++
	w.list[sb.ID].State = caisson.Running
	return sb, nil
}

func (w *world) Wake(ctx context.Context, ref string) (*caisson.Sandbox, error) {
	return w.Resume(ctx, ref)
}

func (w *world) Refresh(ctx context.Context) error {
	w.refreshes.Add(1)
	cfg, err := w.Table.Compile(ctx)
	if err != nil {
		return err
	}
	w.inForce.Store(cfg)
	if err := w.refuse.Load(); err != nil {
		return *err
	}
	return nil
}

func (w *world) DropSandbox(context.Context, caisson.ID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drops++
	return nil
}

func (w *world) Dial(ctx context.Context, id caisson.ID, network, address string) (*os.File, error) {
	w.mu.Lock()
	during := w.during
	w.dials = append(w.dials, string(id)+" "+network+" "+address)
	w.mu.Unlock()
	if during != nil {
		during()
	}
	if end, ok := ctx.Deadline(); !ok || time.Until(end) > connectTime {
		w.t.Errorf("a dial may take until %v", end)
	}
	if address == "1" {
		return nil, caisson.Errorf(caisson.Unavailable, "nobody listens")
	}
	return os.Open(os.DevNull)
}

func fails(t *testing.T, err error, kind caisson.Kind, words string) {
	t.Helper()
	if caisson.KindOf(err) != kind || !strings.Contains(caisson.MessageOf(err)+caisson.FieldOf(err), words) {
		t.Errorf("%v, want %s with %q", err, kind, words)
	}
}

func none() caisson.RouteAuth { return caisson.RouteAuth{Kind: caisson.RouteAuthNone} }

var listening = Settings{Listen: "127.0.0.1:8088", Domain: "apps.example"}

func TestRoutes(t *testing.T) {
	w := newWorld(t, listening)
	sb, theirs := w.sandbox("a", caisson.Running), w.sandbox("b", caisson.Running)
	spec := caisson.RouteSpec{Host: "WEB.apps.example.", Path: "/api/", Sandbox: string(sb), Port: 3000, Auth: none()}
	r, err := w.Service.PutRoute(w.as("a"), "web", spec)
	if err != nil || r.Spec.Host != "web.apps.example" || r.Spec.Path != "/api" || r.URL != "http://web.apps.example:8088/api" || w.refreshes.Load() != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	cfg, err := w.Table.Compile(t.Context())
	if err != nil || len(cfg.Routes) != 1 || cfg.Routes[0].ID != r.ID || cfg.Domain != "apps.example" || !w.key.Public().(ed25519.PublicKey).Equal(ed25519.PublicKey(cfg.Key)) {
		t.Errorf("%+v, %v", cfg, err)
	}
	// It is replaced, under its id.
	spec.Port = 3001
	again, err := w.Service.PutRoute(w.as("a"), "web", spec)
	if err != nil || again.ID != r.ID || again.Spec.Port != 3001 {
		t.Errorf("%+v, %v", again, err)
	}
	// Other accounts have neither the route nor the sandbox nor the host.
	_, err = w.Service.GetRoute(w.as("b"), string(r.ID))
	fails(t, err, caisson.NotFound, "")
	fails(t, w.Service.RemoveRoute(w.as("b"), "web"), caisson.NotFound, "")
	_, err = w.Service.PutRoute(w.as("b"), "x", caisson.RouteSpec{Host: "x.apps.example", Sandbox: string(sb), Port: 1, Auth: none()})
	fails(t, err, caisson.NotFound, "")
	_, err = w.Service.PutRoute(w.as("b"), "x", caisson.RouteSpec{Host: "web.apps.example", Path: "/login", Sandbox: string(theirs), Port: 1, Auth: none()})
	fails(t, err, caisson.Conflict, "another account")
	_, err = w.Service.PutRoute(w.as("a"), "y", spec)
	fails(t, err, caisson.Conflict, "web")
	for _, host := range []string{"", "apps.example", "bank.example", "a.b.apps.example", "localhost"} {
		_, err = w.Service.PutRoute(w.as("a"), "x", caisson.RouteSpec{Host: host, Path: "/p", Sandbox: string(sb), Port: 1, Auth: none()})
		fails(t, err, caisson.Denied, "unix socket")
	}
	_, err = w.Service.PutRoute(w.as("a"), "x", caisson.RouteSpec{Host: "3000-" + string(sb) + ".apps.example", Sandbox: string(sb), Port: 1, Auth: none()})
	fails(t, err, caisson.Invalid, "host")
	own := w.sandbox(caisson.LocalAccount, caisson.Running)
	for _, host := range []string{"", "bank.example"} {
		if _, err = w.Service.PutRoute(w.local(), "x"+host, caisson.RouteSpec{Host: host, Path: "/p", Sandbox: string(own), Port: 1, Auth: none()}); err != nil {
			t.Errorf("%q: %v", host, err)
		}
	}
	// What the wire process refuses is not stored.
	refused := error(caisson.Errorf(caisson.Unavailable, "no"))
	w.refuse.Store(&refused)
	_, err = w.Service.PutRoute(w.as("a"), "new", caisson.RouteSpec{Host: "new.apps.example", Sandbox: string(sb), Port: 1, Auth: none()})
	fails(t, err, caisson.Unavailable, "no")
	_, err = w.Service.GetRoute(w.as("a"), "new")
	fails(t, err, caisson.NotFound, "")
	spec.Port = 4000
	_, err = w.Service.PutRoute(w.as("a"), "web", spec)
	fails(t, err, caisson.Unavailable, "no")
	if r, err = w.Service.GetRoute(w.as("a"), "web"); err != nil || r.Spec.Port != 3001 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, x := range w.inForce.Load().Routes {
		if x.Spec.Host == "new.apps.example" || x.Spec.Port == 4000 {
			t.Errorf("in force, although it was reported as failed: %+v", x)
		}
	}
	w.refuse.Store(nil)
	w.Requests.Add(r.ID, caisson.RouteRequest{Path: "/\x1b[31m" + strings.Repeat("x", 1000)})
	if list, err := w.Service.RouteLog(w.as("a"), "web"); err != nil || len(list) != 1 || strings.Contains(list[0].Path, "\x1b") || len(list[0].Path) > 1000 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := w.Service.RemoveRoute(w.as("a"), "web"); err != nil {
		t.Error(err)
	}
}

func TestCheckSpec(t *testing.T) {
	good := caisson.RouteSpec{Host: "a.example", Sandbox: "s", Port: 1, Auth: none()}
	for _, c := range []struct {
		field  string // "" if it is valid
		change func(*caisson.RouteSpec)
	}{
		{"", func(*caisson.RouteSpec) {}},
		{"", func(s *caisson.RouteSpec) { s.Host = "xn--bcher-kva.example" }},
		{"", func(s *caisson.RouteSpec) { s.Host, s.Path = "", "/a/b.c~d" }},
		{"host", func(s *caisson.RouteSpec) { s.Host = "bücher.example" }},
		{"host", func(s *caisson.RouteSpec) { s.Host = "a_.-.example" }},
		{"host", func(s *caisson.RouteSpec) { s.Host = "*.example" }},
		{"host", func(s *caisson.RouteSpec) { s.Host = "a.example:80" }},
		{"host", func(s *caisson.RouteSpec) { s.Host = "" }},
		{"host", func(s *caisson.RouteSpec) { s.Host, s.Path = "", "/" }},
		{"path", func(s *caisson.RouteSpec) { s.Path = "api" }},
		{"path", func(s *caisson.RouteSpec) { s.Path = "/a/../b" }},
		{"path", func(s *caisson.RouteSpec) { s.Path = "/a//b" }},
		{"path", func(s *caisson.RouteSpec) { s.Path = "/%61" }},
		{"port", func(s *caisson.RouteSpec) { s.Port = 65536 }},
		{"methods[0]", func(s *caisson.RouteSpec) { s.Methods = []string{"get"} }},
		{"methods[0]", func(s *caisson.RouteSpec) { s.Methods = []string{"CONNECT"} }},
		{"auth.kind", func(s *caisson.RouteSpec) { s.Auth = caisson.RouteAuth{} }},
		{"auth.hashes", func(s *caisson.RouteSpec) { s.Auth = caisson.RouteAuth{Kind: "bearer"} }},
		{"auth.hashes[0]", func(s *caisson.RouteSpec) { s.Auth = caisson.RouteAuth{Kind: "bearer", Hashes: []string{"secret"}} }},
		{"auth.hashes", func(s *caisson.RouteSpec) {
			s.Auth = caisson.RouteAuth{Kind: "none", Hashes: []string{strings.Repeat("0", 64)}}
		}},
		{"timeout", func(s *caisson.RouteSpec) { s.Timeout = -1 }},
		{"maxBody", func(s *caisson.RouteSpec) { s.MaxBody = -1 }},
		{"limits", func(s *caisson.RouteSpec) { s.Limits.Client.PerSecond = 1 }},
		{"cors.origins", func(s *caisson.RouteSpec) { s.CORS = &caisson.RouteCORS{} }},
		{"cors.origins[0]", func(s *caisson.RouteSpec) { s.CORS = &caisson.RouteCORS{Origins: []string{"https://a.example/"}} }},
		{"cors.credentials", func(s *caisson.RouteSpec) { s.CORS = &caisson.RouteCORS{Origins: []string{"*"}, Credentials: true} }},
		{"headers", func(s *caisson.RouteSpec) {
			s.Headers = &caisson.RouteHeaders{Set: map[string]string{"caisson_client": "x"}}
		}},
		{"headers", func(s *caisson.RouteSpec) { s.Headers = &caisson.RouteHeaders{Strip: []string{"Content-Length"}} }},
		{"headers.set", func(s *caisson.RouteSpec) { s.Headers = &caisson.RouteHeaders{Set: map[string]string{"X": "a\r\nb"}} }},
		{"responseHeaders", func(s *caisson.RouteSpec) {
			s.ResponseHeaders = &caisson.RouteHeaders{Set: map[string]string{"X Y": "a"}}
		}},
	} {
		s := good
		c.change(&s)
		err := checkSpec(&s)
		if (err == nil) != (c.field == "") || err != nil && firstField(err) != c.field {
			t.Errorf("%+v: %v, want field %q", s, err, c.field)
		}
	}
}

// firstField returns the field of the first error in err.
func firstField(err error) string {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range list.Unwrap() {
			if e != nil {
				return caisson.FieldOf(e)
			}
		}
	}
	return caisson.FieldOf(err)
}

// TestPromise1Dial tests that a wire process that was taken over is connected to nothing that no route and no token names.
func TestPromise1Dial(t *testing.T) {
	w := newWorld(t, listening)
	sb := w.sandbox("a", caisson.Running)
	r, err := w.Service.PutRoute(w.as("a"), "web", caisson.RouteSpec{Host: "web.apps.example", Sandbox: string(sb), Port: 3000, Auth: none()})
	if err != nil {
		t.Fatal(err)
	}
	signed, err := w.Service.PutRoute(w.as("a"), "signed", caisson.RouteSpec{Host: "s.apps.example", Sandbox: string(sb), Port: 3001, Auth: caisson.RouteAuth{Kind: "signed"}})
	if err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	sign := func(t signedurl.Token) string { return signedurl.Sign(w.key, t) }
	_, forger, _ := ed25519.GenerateKey(nil)
	for _, c := range []struct {
		d    caisson.IngressDial
		want string // what is dialled; "" if nothing is
	}{
		{caisson.IngressDial{Route: r.ID}, string(sb) + " tcp 3000"},
		{caisson.IngressDial{Token: sign(signedurl.Token{Sandbox: sb, Port: 22, Expires: later})}, string(sb) + " tcp 22"},
		{caisson.IngressDial{Route: signed.ID, Token: sign(signedurl.Token{Route: signed.ID, Expires: later})}, string(sb) + " tcp 3001"},
		{caisson.IngressDial{}, ""},
		{caisson.IngressDial{Route: signed.ID}, ""},
		{caisson.IngressDial{Route: caisson.NewID(caisson.RoutePrefix)}, ""},
		{caisson.IngressDial{Route: sb}, ""},
		{caisson.IngressDial{Route: "web"}, ""},
		{caisson.IngressDial{Token: string(sb)}, ""},
		{caisson.IngressDial{Token: sign(signedurl.Token{Route: signed.ID, Expires: later})}, ""},
		{caisson.IngressDial{Route: signed.ID, Token: sign(signedurl.Token{Sandbox: sb, Port: 3001, Expires: later})}, ""},
		{caisson.IngressDial{Route: signed.ID, Token: sign(signedurl.Token{Route: r.ID, Expires: later})}, ""},
		{caisson.IngressDial{Token: sign(signedurl.Token{Sandbox: sb, Port: 22, Expires: time.Now().Add(-time.Second)})}, ""},
		{caisson.IngressDial{Token: sign(signedurl.Token{Sandbox: caisson.NewID(caisson.SandboxPrefix), Port: 22, Expires: later})}, ""},
		{caisson.IngressDial{Token: signedurl.Sign(forger, signedurl.Token{Sandbox: sb, Port: 22, Expires: later})}, ""},
	} {
		w.dials = nil
		f, err := w.Connector.Dial(t.Context(), c.d)
		if err == nil {
			f.Close()
		}
		if got := strings.Join(w.dials, ","); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %q, %v", c.d, got, err)
		}
	}
	if err := w.Service.RemoveRoute(w.as("a"), "web"); err != nil {
		t.Fatal(err)
	}
	_, err = w.Connector.Dial(t.Context(), caisson.IngressDial{Route: r.ID})
	fails(t, err, caisson.Denied, "")

	off := newWorld(t, Settings{})
	own := off.sandbox("a", caisson.Running)
	r, err = off.Service.PutRoute(off.as("a"), "web", caisson.RouteSpec{Host: "web.localhost", Sandbox: string(own), Port: 3000, Auth: none()})
	if err != nil || r.URL != "" || off.refreshes.Load() != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	_, err = off.Connector.Dial(t.Context(), caisson.IngressDial{Route: r.ID})
	fails(t, err, caisson.Denied, "no routes")
	_, err = off.Service.SignURL(off.as("a"), caisson.SignRequest{Sandbox: string(own), Port: 1})
	fails(t, err, caisson.Conflict, "ingress.listen")
}

// TestWake tests that requests share one resume, that a sandbox that is suspended while a connection is made is not connected to,
// and what clients learn of sandboxes that cannot be had.
func TestWake(t *testing.T) {
	w := newWorld(t, listening)
	sb := w.sandbox("a", caisson.Paused)
	put := func(name string, resume bool, port int) *caisson.Route {
		r, err := w.Service.PutRoute(w.as("a"), name, caisson.RouteSpec{Host: name + ".apps.example", Sandbox: string(sb), Port: port, Auth: none(), Resume: resume})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	wake, leave, closed := put("wake", true, 3000), put("leave", false, 3000), put("closed", false, 1)
	dial := func(r *caisson.Route) error {
		f, err := w.Connector.Dial(t.Context(), caisson.IngressDial{Route: r.ID})
		if err == nil {
			f.Close()
		}
		return err
	}
	fails(t, dial(leave), caisson.Unavailable, "does not resume")
	full := error(caisson.Errorf(caisson.Exhausted, "the host is full"))
	w.refuse.Store(&full)
	fails(t, dial(wake), caisson.Unavailable, "cannot be resumed")
	w.refuse.Store(nil)
	var wait sync.WaitGroup
	for range 50 {
		wait.Go(func() {
			if err := dial(wake); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if w.resumes != 1 {
		t.Errorf("%d resumes", w.resumes)
	}
	fails(t, dial(closed), caisson.NotFound, "no server listens on port 1")
	// It is suspended while a connection is made: the first one is closed, and it is woken again.
	var once sync.Once
	w.during = func() {
		once.Do(func() {
			w.setState(sb, caisson.Suspended)
			if err := w.Connector.Disconnect(t.Context(), sb); err != nil {
				t.Error(err)
			}
		})
	}
	w.dials = nil
	if err := dial(wake); err != nil || len(w.dials) != 2 || w.resumes != 2 {
		t.Errorf("%v, %d dials, %d resumes", err, len(w.dials), w.resumes)
	}
	if err := w.Connector.Disconnect(t.Context(), sb); err != nil || w.drops != 2 {
		t.Errorf("%v, %d drops", err, w.drops)
	}
	if err := w.Connector.Disconnect(t.Context(), sb); err != nil || w.drops != 2 {
		t.Errorf("without connections: %v, %d drops", err, w.drops)
	}
	w.setState(sb, caisson.Stopped)
	fails(t, dial(wake), caisson.NotFound, "stopped")
	w.setState(sb, caisson.Pausing)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := w.Connector.Dial(ctx, caisson.IngressDial{Route: wake.ID})
	fails(t, err, caisson.Unavailable, "in time")
	if len(w.Connector.dials) != 0 {
		t.Errorf("%d dials are recorded", len(w.Connector.dials))
	}
}

// TestShare tests that the dials of one account do not keep those of others from being made.
func TestShare(t *testing.T) {
	w := newWorld(t, listening)
	dial := func(id caisson.ID) error {
		f, err := w.Connector.Dial(t.Context(), caisson.IngressDial{Token: signedurl.Sign(w.key, signedurl.Token{Sandbox: id, Port: 3000, Expires: time.Now().Add(time.Hour)})})
		if err == nil {
			f.Close()
		}
		return err
	}
	ours, theirs := w.sandbox("a", caisson.Running), w.sandbox("b", caisson.Running)
	begun, hold := make(chan struct{}), make(chan struct{})
	w.during = func() {
		begun <- struct{}{}
		<-hold
	}
	var dials sync.WaitGroup
	for range maxAccountDials {
		dials.Go(func() {
			if err := dial(ours); err != nil {
				t.Error(err)
			}
		})
		<-begun
	}
	w.mu.Lock()
	w.during = nil
	w.mu.Unlock()
	fails(t, dial(ours), caisson.Exhausted, "too many")
	if err := dial(theirs); err != nil {
		t.Error(err)
	}
	close(hold)
	dials.Wait()
	if err := dial(ours); err != nil || len(w.Connector.dialCounts) != 0 {
		t.Errorf("%v, %v", err, w.Connector.dialCounts)
	}
}

// TestUsed tests that a connection counts as a use, and that the wire process is believed about the use of sandboxes only while it may
// have connections to them.
func TestUsed(t *testing.T) {
	w := newWorld(t, listening)
	sb, other := w.sandbox("a", caisson.Running), w.sandbox("a", caisson.Running)
	r, err := w.Service.PutRoute(w.as("a"), "web", caisson.RouteSpec{Host: "web.apps.example", Sandbox: string(sb), Port: 3000, Auth: none()})
	if err != nil {
		t.Fatal(err)
	}
	says := []caisson.IngressUse{{Sandbox: sb}, {Sandbox: other, Active: true}, {Sandbox: "nonsense", Active: true}}
	check := func(want ...caisson.IngressUse) {
		t.Helper()
		w.mu.Lock()
		defer w.mu.Unlock()
		if !slices.Equal(w.uses, want) {
			t.Errorf("uses %+v, want %+v", w.uses, want)
		}
		w.uses = nil
	}
	w.Connector.Used(says)
	check()
	f, err := w.Connector.Dial(t.Context(), caisson.IngressDial{Route: r.ID})
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	w.Connector.Used(says)
	check(caisson.IngressUse{Sandbox: sb, Active: true}, caisson.IngressUse{Sandbox: sb})
	if err := w.Connector.Disconnect(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	w.Connector.Used(says)
	check()
}

func TestSignURL(t *testing.T) {
	w := newWorld(t, Settings{Listen: "0.0.0.0:443", Domain: "Apps.Example", TLS: TLSSettings{Cert: "/c", Key: "/k"}})
	sb := w.sandbox("a", caisson.Running)
	u, err := w.Service.SignURL(w.as("a"), caisson.SignRequest{Sandbox: string(sb), Port: 3000, Path: "/a b?x=%20", Resume: true})
	if err != nil {
		t.Fatal(err)
	}
	want := "https://3000-" + string(sb) + ".apps.example/a%20b?x=%20&caisson-token="
	token, ok := strings.CutPrefix(u.URL, want)
	got, err := signedurl.Verify(w.key.Public().(ed25519.PublicKey), token, time.Now())
	if !ok || err != nil || got.Sandbox != sb || got.Port != 3000 || !got.Resume || !got.Expires.Equal(u.ExpiresAt) || time.Until(u.ExpiresAt) > time.Hour {
		t.Errorf("%s: %+v, %v", u.URL, got, err)
	}
	for field, req := range map[string]caisson.SignRequest{
		"port":    {Sandbox: string(sb)},
		"ttl":     {Sandbox: string(sb), Port: 1, TTL: caisson.Duration(31 * 24 * time.Hour)},
		"path":    {Sandbox: string(sb), Port: 1, Path: "//evil.example/"},
		"sandbox": {},
	} {
		_, err := w.Service.SignURL(w.as("a"), req)
		fails(t, err, caisson.Invalid, field)
	}
	_, err = w.Service.SignURL(w.as("b"), caisson.SignRequest{Sandbox: string(sb), Port: 1})
	fails(t, err, caisson.NotFound, "")
}

// TestCertificate tests that the certificate is read anew, and that the last good one stays while it cannot be read.
func TestCertificate(t *testing.T) {
	dir := t.TempDir()
	cert, key := dir+"/cert", dir+"/key"
	w := newWorld(t, Settings{Listen: ":443", TLS: TLSSettings{Cert: cert, Key: key}})
	if _, err := w.Table.Compile(t.Context()); caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("without the files: %v", err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want string) {
		t.Helper()
		c, err := w.Table.Compile(t.Context())
		if err != nil || c.Certificate+c.CertificateKey != want {
			t.Errorf("%+v, %v, want %s", c, err, want)
		}
	}
	write(cert, "one")
	write(key, "key")
	check("onekey")
	before := w.Table.stamps()
	write(cert, "other")
	check("otherkey")
	if w.Table.stamps() == before {
		t.Error("the change is not noticed")
	}
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	check("otherkey")
}
