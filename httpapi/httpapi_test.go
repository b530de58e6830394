package httpapi_test

import (
	"bytes"
	"context"
	"flag"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/httpapi"
	"github.com/caisson-dev/caisson/httpapi/apitest"
	"github.com/caisson-dev/caisson/internal/coretest"
	"github.com/caisson-dev/caisson/internal/poll"
)

var update = flag.Bool("update", false, "write docs/openapi.json anew")

// TestMain fails if goroutines of the API or its client outlive the tests.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if code == 0 {
		code = apitest.Leaks()
	}
	os.Exit(code)
}

// server is an API over a world, on a unix socket and on TCP.
type server struct {
	world  *coretest.World
	api    *httpapi.API
	log    *lockedBuffer
	socket string
	url    string
}

// lockedBuffer is a log that tests may read.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// serve serves a world with the accounts local, alice and bob.
func serve(t *testing.T, change ...func(*httpapi.Config)) *server {
	t.Helper()
	s := &server{world: coretest.New(t), log: &lockedBuffer{}}
	for _, name := range []string{"alice", "bob"} {
		if _, err := s.world.Store().Accounts().Ensure(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.NewTextHandler(s.log, nil))
	cfg := s.world.Config(log)
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if s.api, err = httpapi.New(cfg); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "caisson") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s.socket = filepath.Join(dir, "s")
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	local := &httptest.Server{Listener: l, Config: httpapi.Server(s.api.Local(), log)}
	local.Start()
	remote := httptest.NewUnstartedServer(nil)
	remote.Config = httpapi.Server(s.api.Remote(), log)
	remote.Start()
	s.url = remote.URL
	t.Cleanup(func() {
		s.api.Close()
		local.Close()
		remote.Close()
		poll.Until(t, apitest.Timeout, func() bool { return s.world.RunningProcesses() == 0 })
	})
	return s
}

// local returns a client on the socket.
func (s *server) local(t *testing.T, account string) *client.Client {
	t.Helper()
	return connect(t, client.Config{Socket: s.socket, Account: account})
}

// remote returns a client on TCP with a fresh token of account.
func (s *server) remote(t *testing.T, account string) *client.Client {
	t.Helper()
	_, secret, err := s.local(t, "").CreateToken(t.Context(), account, "test", 0)
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, client.Config{URL: s.url, Token: secret})
}

func connect(t *testing.T, cfg client.Config) *client.Client {
	t.Helper()
	c, err := client.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func cores(s *server, c *client.Client) apitest.Cores {
	return apitest.Cores{API: c.API, Secrets: s.world, Charge: s.world.Charge}
}

// TestCores drives client and server as if they were the cores.
func TestCores(t *testing.T) {
	t.Parallel()
	apitest.Test(t, func(t *testing.T) (context.Context, apitest.Cores) {
		// The caller in the context only tells the suite the account; the server makes its own.
		ctx := caisson.WithCaller(context.Background(), caisson.Caller{Account: "alice", Local: true})
		s := serve(t)
		return ctx, cores(s, s.local(t, "alice"))
	})
}

// TestDocument keeps docs/openapi.json current.
func TestDocument(t *testing.T) {
	const path = "../docs/openapi.json"
	got, err := serve(t).api.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("docs/openapi.json is not current; run go test ./httpapi -run TestDocument -update\n%s", diff)
	}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
