package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
)

// A gatewaySetup consists of a mock model and the proxies in front of it on the host: the model gateway, and nginx if it is
// installed.
type gatewaySetup struct {
	mock, gateway *server // The mock model, and the model gateway.
	nginx         *nginx  // Nil if nginx is not installed.
}

// startGateway starts the mock model and the proxies. The model gateway runs in a separate process with the handlers of the
// wire process (see the command in bench/gateway), because that of the wire process itself can be reached only over wires.
func (s traffic) startGateway(ctx context.Context, name string) (_ *gatewaySetup, err error) {
	t := &gatewaySetup{}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.end())
		}
	}()
	if t.mock, err = s.startLoad(ctx, "model"); err != nil {
		return nil, err
	}
	dir := filepath.Join(s.Dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if t.gateway, err = s.startServer(ctx, gatewayProgram, dir, "http://"+t.mock.addressOn(hostAddress)+"/v1"); err != nil {
		return nil, err
	}
	t.nginx, err = startNginx(ctx, dir, t.mock.addressOn(hostAddress))
	return t, err
}

// end stops the proxies and the mock model.
func (t *gatewaySetup) end() (err error) {
	if t.nginx != nil {
		err = t.nginx.end()
	}
	for _, v := range []*server{t.gateway, t.mock} {
		if v != nil {
			err = errors.Join(err, v.end())
		}
	}
	return err
}

// count returns the number of calls in the model gateway's ledger. It must be called after end.
func (t *gatewaySetup) count() (n int, err error) {
	_, err = fmt.Sscan(t.gateway.out.String(), &n)
	return n, err
}

// withoutNginx is the description, in a row, of nginx, with which Caisson is compared, if nginx is not installed.
const withoutNginx = "nginx (not installed)"

// Numbers of calls that a client of the load program makes sequentially each time it is started.
const (
	callsEach     = 200                     // Counted calls at each start.
	callsBefore   = 50                      // Uncounted calls at each start.
	callsPerRound = callsEach + callsBefore // Counted and uncounted calls at each start.
)

// callRounds returns the number of counted rounds. In each round, every client is started once.
func (s traffic) callRounds() int { return max(s.N/2, 1) }

// calls returns the number of calls that one client makes in all rounds, including the uncounted round.
func (s traffic) calls() int { return (s.callRounds() + 1) * callsPerRound }

// callArgs returns the arguments with which the load program calls the chat API at url.
func callArgs(url string) []string {
	return []string{fmt.Sprintf("-n=%d", callsEach), fmt.Sprintf("-warm=%d", callsBefore), "call", url}
}

// toMilliseconds converts samples from microseconds, the unit of the load program, to milliseconds.
func toMilliseconds(all []samples) []samples {
	out := make([]samples, len(all))
	for i, s := range all {
		for _, us := range s {
			out[i] = append(out[i], us/1000)
		}
	}
	return out
}

// gatewayAdded compares calls of a model through the model gateway with direct calls, and with calls through nginx.
func (s traffic) gatewayAdded(ctx context.Context) error {
	t, err := s.startGateway(ctx, "added")
	if err != nil {
		return err
	}
	sides := []measure{s.onHost(callArgs(chatURL(t.gateway.addressOn(hostAddress)))...), s.onHost(callArgs(chatURL(t.mock.addressOn(hostAddress)))...)}
	if t.nginx != nil {
		sides = append(sides, s.onHost(callArgs(chatURL(t.nginx.address))...))
	}
	all, err := interleave(ctx, s.callRounds(), sides...)
	if err := errors.Join(err, t.end()); err != nil {
		return err
	}
	if n, err := t.count(); n != s.calls() {
		return errors.Join(err, fmt.Errorf("there are %d calls in the ledger, of %d", n, s.calls()))
	}
	all = toMilliseconds(all)
	s.add(newRow("gateway.added", "ms", all[0], "direct", all[1]).atMostOver(0.3))
	if t.nginx == nil {
		s.add(newRow("gateway.added.nginx", "ms", all[0], withoutNginx, nil))
		return nil
	}
	s.add(newRow("gateway.added.nginx", "ms", all[0], "nginx proxy_pass", all[2]))
	return nil
}

// gatewayRate compares the numbers of calls per second that 32 concurrent clients make through the model gateway, through nginx
// and directly. The clients, the proxies and the model share the processors.
func (s traffic) gatewayRate(ctx context.Context) error {
	t, err := s.startGateway(ctx, "rate")
	if err != nil {
		return err
	}
	client := func(host string) measure { return s.onHost("-for=800ms", "-conns=32", "rate", chatURL(host)) }
	baseline, sides := withoutNginx, []measure{client(t.gateway.addressOn(hostAddress)), client(t.mock.addressOn(hostAddress))}
	if t.nginx != nil {
		baseline, sides = "nginx proxy_pass", append(sides, client(t.nginx.address))
	}
	all, err := interleave(ctx, 4, sides...)
	if err := errors.Join(err, t.end()); err != nil {
		return err
	}
	s.add(newSpeed("gateway.rate", "calls/s", all[0], baseline, append(all, nil)[2]).over(5000))
	s.add(newSpeed("gateway.rate.direct", "calls/s", all[0], "direct", all[1]))
	return nil
}

// settings is a format for the configuration of a daemon with the mock model; its argument is the address of the model. Providers
// may use http only on this machine.
const settings = `providers:
  - {name: mock, kind: openai, baseURL: "http://%s/v1"}
models:
  - {alias: bench, provider: mock, prices: {input: "1", output: "10"}, context: 128000, output: 16000}
`

// gatewayInside compares calls from inside a sandbox through the model gateway with direct calls over the same wire. The policy
// allows the direct connections by address, and their content is not inspected.
func (s traffic) gatewayInside(ctx context.Context) (err error) {
	mock, err := s.startLoad(ctx, "model")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mock.end()) }()
	file := filepath.Join(s.Dir, "models.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, settings, mock.addressOn("127.0.0.1")), 0o600); err != nil {
		return err
	}
	d, err := startDaemon(ctx, s.Config, "models", "--config", file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	box, err := s.createLoaded(ctx, d, &caisson.ModelGrant{Models: []string{"bench"}})
	if err != nil {
		return err
	}
	all, err := interleave(ctx, s.callRounds(),
		box.inside(callArgs(chatURL("llm.caisson.internal"))...), box.inside(callArgs(chatURL(mock.addressOn(hostAddress)))...))
	if err := errors.Join(err, box.remove(ctx)); err != nil {
		return err
	}
	rows, err := d.api.Usage(ctx, caisson.UsageQuery{})
	if err != nil || len(rows) != 1 || rows[0].Calls != int64(s.calls()) {
		return errors.Join(err, fmt.Errorf("the ledger says %+v, not one row of %d calls", rows, s.calls()))
	}
	all = toMilliseconds(all)
	s.add(newRow("gateway.inside", "ms", all[0], "relay over the same wire", all[1]).atMostOver(0.3))
	return nil
}
