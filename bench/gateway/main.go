// Command gateway serves the model gateway of the wire process on a TCP listener, for one guest without budgets. It uses the
// handlers of the wire process (package wireproc), with a journal in a file, leases from a store, and a book that reads the
// journal into the store, as in a daemon. Only the wire is missing.
//
//	gateway DIR PROVIDER
//	gateway ingress ADDRESS
//
// DIR is an empty directory for the ledger, PROVIDER the base URL of a provider that implements OpenAI's API. The listener is
// descriptor 3. When standard input ends, the command prints the number of calls in the ledger and exits.
//
// With the argument ingress, it serves the ingress of the wire process instead, with one route for /v1. The connections of the
// route lead to a server at ADDRESS instead of one in a sandbox.
package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/credential"
	"github.com/caisson-dev/caisson/daemon/sqlite"
	"github.com/caisson-dev/caisson/ledger"
	"github.com/caisson-dev/caisson/wire"
	"github.com/caisson-dev/caisson/wire/ingress"
	"github.com/caisson-dev/caisson/wire/wireproc"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: gateway DIR PROVIDER")
		os.Exit(2)
	}
	serve := run
	if os.Args[1] == "ingress" {
		serve = serveIngress
	}
	if err := serve(ctx, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

// run serves the model gateway until standard input ends, and prints the number of calls in the ledger.
func run(ctx context.Context, dir, provider string) (err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	store, err := sqlite.Open(ctx, sqlite.Config{
		Path: filepath.Join(dir, "caisson.db"), Log: log,
		AuditKey: func() (caisson.Secret, bool, error) { return credential.LoadKeyFile(filepath.Join(dir, "audit.key")) },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	guest := caisson.Guest{Sandbox: caisson.NewID(caisson.SandboxPrefix), Account: caisson.LocalAccount}
	book, err := ledger.NewBook(ledger.BookConfig{
		Dir: root, Store: store.Ledger(), Log: log,
		Owner: func(caisson.Guest) (string, error) { return guest.Account, nil },
	})
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	read := make(chan error, 1)
	go func() { read <- book.Run(ctx) }()
	err = serve(ctx, book, guest, provider, log)
	end()
	if err := errors.Join(err, <-read); err != nil { // When book.Run has returned, all calls are in the store.
		return err
	}
	rows, err := store.Ledger().Usage(context.WithoutCancel(ctx), caisson.AllAccounts(), caisson.UsageQuery{})
	if err != nil {
		return err
	}
	calls := int64(0)
	for _, r := range rows {
		calls += r.Calls
	}
	fmt.Println(calls)
	return nil
}

// serveIngress serves the ingress, whose connections lead to address, until standard input ends.
func serveIngress(_ context.Context, _, address string) error {
	var d net.Dialer
	g := ingress.New(ingress.Config{
		Dial: func(ctx context.Context, _ caisson.IngressDial) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", address)
		},
		Log: slog.New(slog.DiscardHandler),
	})
	const most = 1e6 // limit on the route's requests per second that no client can reach
	err := g.Configure(&caisson.IngressConfig{Domain: "localhost", Key: make([]byte, ed25519.PublicKeySize), Routes: []caisson.IngressRoute{{
		ID: caisson.NewID(caisson.RoutePrefix), Spec: caisson.RouteSpec{
			Path: "/v1", Sandbox: string(caisson.NewID(caisson.SandboxPrefix)), Port: 1, Auth: caisson.RouteAuth{Kind: caisson.RouteAuthNone},
			Limits: caisson.RouteLimits{Client: caisson.RouteRate{PerSecond: most, Burst: most}},
		},
	}}})
	if err != nil {
		return err
	}
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		g.Close()
	}()
	if err := g.Serve(loopbackListener{l}); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// loopbackListener is a listener on all addresses whose method Addr returns an address of the loopback device, so that the
// ingress serves it without TLS.
type loopbackListener struct{ net.Listener }

// Addr implements [net.Listener].
func (loopbackListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// serve serves the model gateway to guest on descriptor 3 until standard input ends.
func serve(ctx context.Context, book *ledger.Book, guest caisson.Guest, provider string, log *slog.Logger) error {
	g, err := newGateway(ctx, book, provider, log)
	if err != nil {
		return err
	}
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	llm := g.Hosts()["llm"]
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		llm.ServeHTTP(w, r.WithContext(caisson.WithGuest(r.Context(), guest)))
	})}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		server.Shutdown(ctx)
	}()
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// alias is the alias of the model, which clients request.
const alias = "bench"

// newGateway returns the model gateway of a wire process, with a journal. Its one model is one of the provider at a base URL.
func newGateway(ctx context.Context, book *ledger.Book, provider string, log *slog.Logger) (g wire.Gateway, err error) {
	journal := func() error {
		id, f, err := book.Begin(ctx)
		if err != nil {
			return err
		}
		return g.Journal(id, f)
	}
	grant := &caisson.ModelGrant{Models: []string{alias}}
	var d net.Dialer
	g, err = wireproc.Process().Gateway(wire.Env{
		Lessor: book.Lessor, Dial: d.DialContext, Log: log,
		Grant:  func(context.Context) *caisson.ModelGrant { return grant },
		Record: func(caisson.Guest) io.Writer { return nil },
		Grew:   func() {},
		Rotate: func() {
			go func() {
				if err := journal(); err != nil {
					log.Error("there is no further journal", "err", err)
				}
			}()
		},
		Finished: func(id caisson.ID) {
			go func() {
				if err := book.Finish(ctx, id); err != nil {
					log.Error("a journal cannot be finished", "err", err)
				}
			}()
		},
	})
	if err != nil {
		return nil, err
	}
	err = g.Configure(caisson.GatewayConfig{
		Providers: []caisson.Provider{{Name: "mock", Kind: caisson.ProviderOpenAI, BaseURL: provider}},
		Models: []caisson.Model{{
			Alias: alias, Provider: "mock", Prices: &caisson.Prices{Input: caisson.Dollar, Output: 10 * caisson.Dollar},
			Context: 128_000, Output: 16_000,
		}},
	})
	if err != nil {
		return nil, err
	}
	return g, journal()
}
