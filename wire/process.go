package wire

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"

	caisson "github.com/caisson-dev/caisson"
)

// A Process configures what the wire process does apart from wires, so that this package depends on no policies and no models.
type Process struct {
	// Compile compiles a policy. Required.
	Compile func(caisson.Policy) (caisson.Decider, error)
	// Checksums makes the process compute the checksums of the packets that it sends, for guests that verify them. gVisor does
	// not.
	Checksums bool
	// Gateway creates the handler of virtual hosts. Required.
	Gateway func(Env) (Gateway, error)
}

// An Env has the functions of the wire process that a Gateway uses.
type Env struct {
	// Lessor returns the lessor for the meter that writes a journal.
	Lessor func(journal caisson.ID) caisson.Lessor
	// Dial resolves the host of addr with the host's nameservers and connects to it. No policy applies: addresses come from the
	// configuration.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Roots are the host's certificate authorities.
	Roots *x509.CertPool
	// Grant returns the current model grant of the wire over which a request came, nil if there is none.
	Grant func(ctx context.Context) *caisson.ModelGrant
	// Record returns the writer that records the model calls of a guest, nil if they are not recorded.
	Record func(g caisson.Guest) io.Writer
	// Tool calls a function of the engine on behalf of the guest in ctx.
	Tool func(ctx context.Context, name string, in json.RawMessage) (json.RawMessage, error)
	// Stream makes the engine open a stream for the sandbox of the guest in ctx, which must be the context of a request that came
	// over a wire. The connection supports CloseWrite. The caller must close it; it is also closed when ctx ends or the wire is
	// detached. Returns Exhausted if there are too many streams; other errors are the engine's.
	Stream func(ctx context.Context, in json.RawMessage) (net.Conn, error)
	// DialSandbox makes the engine connect to a port of a sandbox for the ingress. The caller must close the connection. Returns
	// Exhausted if there are too many requests for connections; other errors are the engine's.
	DialSandbox func(ctx context.Context, d caisson.IngressDial) (net.Conn, error)
	// Requested reports a request to a route, for the route's log. It does not block, and may lose reports.
	Requested func(route caisson.ID, e caisson.RouteRequest)
	// Used reports the sandboxes to which the ingress passes requests.
	Used func(list []caisson.IngressUse)
	// Grew reports that a journal has grown. Rotate requests another journal, which is passed to Gateway.Journal.
	Grew, Rotate func()
	Finished     func(journal caisson.ID) // reports that nothing more is written to a journal
	Log          *slog.Logger
}

// A Gateway serves virtual hosts. All methods are safe for concurrent use.
type Gateway interface {
	// Hosts returns the handlers by the part of the host name before ".caisson.internal". The context of requests has a
	// [caisson.Guest].
	Hosts() map[string]http.Handler
	// Configure replaces the settings. If the settings of providers and models are invalid, it returns an error and keeps the
	// previous settings of providers and models.
	Configure(caisson.GatewayConfig) error
	// Journal passes a new journal to the gateway, which then owns f.
	Journal(id caisson.ID, f *os.File) error
	// Forget gives the lessors back their leases of the budgets with these keys, whose limits have changed.
	Forget(budgets []string)
	// Runs changes the set of runs on other machines that are served.
	Runs(caisson.GatewayRunChange) error
	// Listen serves model calls of runs on other machines over TCP. f is a listening socket, which the gateway then owns. It is
	// called once, after Configure.
	Listen(f *os.File) error
	// Ingress serves routes over TCP. f is a listening socket, which the gateway then owns. It is called once, after Configure.
	Ingress(f *os.File) error
	// Drop closes the connections of the ingress to a sandbox, which is being suspended, paused or stopped.
	Drop(sandbox caisson.ID)
}

// Domain is the parent domain of the virtual hosts.
const Domain = "caisson.internal"
