package bench

import (
	"context"
	"errors"
)

// throughputs is how many transfers, of a second each, are measured.
const throughputs = 5

// wireOut compares how fast a sandbox can send to a program on the host with the same over a veth pair.
func (s traffic) wireOut(ctx context.Context) error {
	return s.throughput(ctx, "wire.out", "send")
}

// wireIn is wireOut in the other direction.
func (s traffic) wireIn(ctx context.Context) error {
	return s.throughput(ctx, "wire.in", "receive")
}

func (s traffic) throughput(ctx context.Context, row, client string) error {
	all, err := s.overWires(ctx, throughputs, "-for=1s", client)
	if err != nil {
		return err
	}
	s.add(newSpeed(row, "Gbit/s", all[0], "veth pair", all[1]).over(5))
	return nil
}

// wireConnect compares how long a connection takes to be there. Ours is decided on, dialled and only then accepted. There are
// fewer than a wire lets begin at once.
func (s traffic) wireConnect(ctx context.Context) error {
	all, err := s.overWires(ctx, 8, "-n=50", "-warm=10", "connect")
	if err != nil {
		return err
	}
	s.add(newRow("wire.connect", "µs", all[0], "veth pair", all[1]))
	return nil
}

// overWires runs a client in a sandbox and at the end of a veth pair, n times in turns.
func (s traffic) overWires(ctx context.Context, n int, client ...string) ([]samples, error) {
	sink, err := s.startLoad(ctx, "sink")
	if err != nil {
		return nil, err
	}
	box, err := s.createLoaded(ctx, s.daemon, nil)
	if err != nil {
		return nil, errors.Join(err, sink.end())
	}
	to := func(address string) []string { return append(client[:len(client):len(client)], sink.at(address)) }
	all, err := takeTurns(ctx, n, box.inside(to(hostAddress)...), s.overVeth(to(vethAddress)...))
	return all, errors.Join(err, box.remove(ctx), sink.end())
}
