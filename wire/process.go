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

// A Process is what the wire process is made of besides wires. Whoever constructs it knows policies and the model gateway;
// this package does not.
type Process struct {
	// Compile makes sense of a policy. Required.
	Compile func(caisson.Policy) (caisson.Decider, error)
	// Checksums makes the process compute the checksums of what it sends, for guests that look at them. gVisor's does not.
	Checksums bool
	// Gateway constructs what answers on the virtual hosts; nil: only http://caisson.internal is there.
	Gateway func(Env) (Gateway, error)
}

// An Env is what the wire process has for a Gateway.
type Env struct {
	// Lessor returns who hands out budgets to the writer of a journal.
	Lessor func(journal caisson.ID) caisson.Lessor
	// Dial resolves the host of addr with the host's nameservers and connects to it. It asks no policy: addresses come from
	// the configuration.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Roots are the host's authorities.
	Roots *x509.CertPool
	// Grant returns what the wire that a request came over is granted now, nil if nothing.
	Grant func(ctx context.Context) *caisson.ModelGrant
	// Record returns where the calls of a guest are recorded, nil if nowhere.
	Record func(g caisson.Guest) io.Writer
	// Tool has the engine do something for the guest in ctx.
	Tool func(ctx context.Context, name string, in json.RawMessage) (json.RawMessage, error)
	// Stream has the engine open a stream for the sandbox of the guest in ctx, which has to be the context of a request that came
	// over a wire. The connection can be closed for writing alone (CloseWrite). It is the caller's to close, and is closed when ctx ends or the wire
	// is detached. Exhausted if there are too many; otherwise errors are the engine's.
	Stream func(ctx context.Context, in json.RawMessage) (net.Conn, error)
	// Grew says that a journal has grown, Rotate asks for another one, which Gateway.Journal then gets, and Finished says
	// that nothing more is written to one.
	Grew, Rotate func()
	Finished     func(journal caisson.ID)
	Log          *slog.Logger
}

// A Gateway answers on virtual hosts. All methods are safe for concurrent use.
type Gateway interface {
	// Hosts returns the handlers by the part of the name before ".caisson.internal". Requests have a [caisson.Guest] in their
	// context.
	Hosts() map[string]http.Handler
	Configure(caisson.GatewayConfig) error
	// Journal gives it a new journal, whose file it owns from then on.
	Journal(id caisson.ID, f *os.File) error
	Forget(budgets []string)
	// Runs changes which runs on other machines are served.
	Runs(caisson.GatewayRunChange) error
	// Listen serves calls for those runs that come over TCP. f is a listening socket, which it owns from then on. It is called
	// once, after Configure.
	Listen(f *os.File) error
}

// Domain is below which virtual hosts are.
const Domain = "caisson.internal"
