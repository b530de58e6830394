package bench

import (
	"context"
	"errors"
)

// throughputSamples is the number of measured transfers in each direction. Each transfer takes one second.
const throughputSamples = 5

// wireOut compares the speed at which a sandbox sends to a program on the host over its wire with the speed over a veth pair.
func (s traffic) wireOut(ctx context.Context) error {
	return s.throughput(ctx, "wire.out", "send")
}

// wireIn compares the speed at which a sandbox receives from a program on the host over its wire with the speed over a veth pair.
func (s traffic) wireIn(ctx context.Context) error {
	return s.throughput(ctx, "wire.in", "receive")
}

// throughput adds a row, named row, that compares the speed of a client of the load program, "send" or "receive", in a sandbox
// with its speed at the other end of a veth pair.
func (s traffic) throughput(ctx context.Context, row, client string) error {
	all, err := s.overWires(ctx, throughputSamples, "-for=1s", client)
	if err != nil {
		return err
	}
	s.add(newSpeed(row, "Gbit/s", all[0], "veth pair", all[1]).over(5))
	return nil
}

// wireConnect compares the time for establishing a connection over a wire with the time over a veth pair. The wire checks the
// policy and connects to the destination before it accepts the connection of the sandbox. The client makes fewer connections than
// a wire may dial concurrently.
func (s traffic) wireConnect(ctx context.Context) error {
	all, err := s.overWires(ctx, 8, "-n=50", "-warm=10", "connect")
	if err != nil {
		return err
	}
	s.add(newRow("wire.connect", "µs", all[0], "veth pair", all[1]))
	return nil
}

// overWires runs a client of the load program in a sandbox and at the other end of a veth pair, n times in turns, and returns the
// samples of both.
func (s traffic) overWires(ctx context.Context, n int, client ...string) ([]samples, error) {
	sink, err := s.startLoad(ctx, "sink")
	if err != nil {
		return nil, err
	}
	box, err := s.createLoaded(ctx, s.daemon, nil)
	if err != nil {
		return nil, errors.Join(err, sink.end())
	}
	to := func(address string) []string {
		return append(client[:len(client):len(client)], sink.addressOn(address))
	}
	all, err := interleave(ctx, n, box.inside(to(hostAddress)...), s.overVeth(to(vethAddress)...))
	return all, errors.Join(err, box.remove(ctx), sink.end())
}
