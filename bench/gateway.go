package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
)

// A stand is a mock model and what is before it on the host: the gateway, and nginx where it is installed.
type stand struct {
	mock, gateway *server
	nginx         *nginx // nil: it is not installed
}

// startStand starts the gateway in a process of its own, by the same handlers as in the wire process (see the command in
// bench/gateway): there it can be reached over wires only.
func (s traffic) startStand(ctx context.Context, name string) (_ *stand, err error) {
	t := &stand{}
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
	if t.gateway, err = s.startServer(ctx, gatewayProgram, dir, "http://"+t.mock.at(hostAddress)+"/v1"); err != nil {
		return nil, err
	}
	t.nginx, err = startNginx(ctx, dir, t.mock.at(hostAddress))
	return t, err
}

func (t *stand) end() (err error) {
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

// count returns how many calls are in the gateway's ledger, when it has ended.
func (t *stand) count() (n int, err error) {
	_, err = fmt.Sscan(t.gateway.out.String(), &n)
	return n, err
}

// withoutNginx is what rows say where it is not installed.
const withoutNginx = "nginx (not installed)"

// Calls of one client, one at a time: how many each time that it is started.
const (
	callsEach     = 200
	callsBefore   = 50 // each time, that do not count
	callsPerRound = callsEach + callsBefore
)

// callRounds is how many times clients are started whose calls count.
func (s traffic) callRounds() int { return max(s.N/2, 1) }

// calls is how many calls a client makes in all rounds, the one that does not count included.
func (s traffic) calls() int { return (s.callRounds() + 1) * callsPerRound }

func callArgs(url string) []string {
	return []string{fmt.Sprintf("-n=%d", callsEach), fmt.Sprintf("-warm=%d", callsBefore), "call", url}
}

// inMilliseconds converts what clients of the load program have measured, which is in microseconds.
func inMilliseconds(all []samples) []samples {
	out := make([]samples, len(all))
	for i, s := range all {
		for _, us := range s {
			out[i] = append(out[i], us/1000)
		}
	}
	return out
}

// gatewayAdded compares calls of a model through the gateway with calls of the same model directly, and through nginx.
func (s traffic) gatewayAdded(ctx context.Context) error {
	t, err := s.startStand(ctx, "added")
	if err != nil {
		return err
	}
	sides := []measure{s.onHost(callArgs(chat(t.gateway.at(hostAddress)))...), s.onHost(callArgs(chat(t.mock.at(hostAddress)))...)}
	if t.nginx != nil {
		sides = append(sides, s.onHost(callArgs(chat(t.nginx.address))...))
	}
	all, err := takeTurns(ctx, s.callRounds(), sides...)
	if err := errors.Join(err, t.end()); err != nil {
		return err
	}
	if n, err := t.count(); n != s.calls() {
		return errors.Join(err, fmt.Errorf("there are %d calls in the ledger, of %d", n, s.calls()))
	}
	all = inMilliseconds(all)
	s.add(newRow("gateway.added", "ms", all[0], "direct", all[1]).atMostOver(0.3))
	if t.nginx == nil {
		s.add(newRow("gateway.added.nginx", "ms", all[0], withoutNginx, nil))
		return nil
	}
	s.add(newRow("gateway.added.nginx", "ms", all[0], "nginx proxy_pass", all[2]))
	return nil
}

// gatewayRate compares how many calls a second 32 clients can make, with them and the model on the same processors.
func (s traffic) gatewayRate(ctx context.Context) error {
	t, err := s.startStand(ctx, "rate")
	if err != nil {
		return err
	}
	client := func(host string) measure { return s.onHost("-for=800ms", "-conns=32", "rate", chat(host)) }
	baseline, sides := withoutNginx, []measure{client(t.gateway.at(hostAddress)), client(t.mock.at(hostAddress))}
	if t.nginx != nil {
		baseline, sides = "nginx proxy_pass", append(sides, client(t.nginx.address))
	}
	all, err := takeTurns(ctx, 4, sides...)
	if err := errors.Join(err, t.end()); err != nil {
		return err
	}
	s.add(newSpeed("gateway.rate", "calls/s", all[0], baseline, append(all, nil)[2]).over(5000))
	s.add(newSpeed("gateway.rate.direct", "calls/s", all[0], "direct", all[1]))
	return nil
}

// settings of a daemon with the mock model. Its configuration takes http for providers on this machine only.
const settings = `providers:
  - {name: mock, kind: openai, baseURL: "http://%s/v1"}
models:
  - {alias: bench, provider: mock, prices: {input: "1", output: "10"}, context: 128000, output: 16000}
`

// gatewayInside compares calls through the gateway from inside a sandbox with calls over a connection of the same wire that
// policy allows by its address, and that nobody looks into.
func (s traffic) gatewayInside(ctx context.Context) (err error) {
	mock, err := s.startLoad(ctx, "model")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mock.end()) }()
	file := filepath.Join(s.Dir, "models.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, settings, mock.at("127.0.0.1")), 0o600); err != nil {
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
	all, err := takeTurns(ctx, s.callRounds(),
		box.inside(callArgs(chat("llm.caisson.internal"))...), box.inside(callArgs(chat(mock.at(hostAddress)))...))
	if err := errors.Join(err, box.remove(ctx)); err != nil {
		return err
	}
	rows, err := d.api.Usage(ctx, caisson.UsageQuery{})
	if err != nil || len(rows) != 1 || rows[0].Calls != int64(s.calls()) {
		return errors.Join(err, fmt.Errorf("the ledger says %+v, not one row of %d calls", rows, s.calls()))
	}
	all = inMilliseconds(all)
	s.add(newRow("gateway.inside", "ms", all[0], "relay over the same wire", all[1]).atMostOver(0.3))
	return nil
}
