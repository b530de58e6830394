package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor"
)

// sinkPort is the port on a sandbox's 127.0.0.1 of the load program's sink, a server that only receives or only sends data.
const sinkPort = 7000

// The directions of the data between a client and a sink of the load program; see the command in bench/load.
const (
	toSink   = 's' // the client sends
	fromSink = 'r' // the sink sends
)

// dialConnect compares the time for connecting to a server on the loopback device of a sandbox with the time for running a
// program in the sandbox.
func (s traffic) dialConnect(ctx context.Context) error {
	return s.withSink(ctx, func(rt *gvisor.Runtime, box *loadSandbox) error {
		all, err := compare(ctx, 10*s.N,
			operation{do: func(ctx context.Context) error {
				f, err := rt.Dial(ctx, caisson.ID(box.id), "tcp", fmt.Sprint(sinkPort))
				if err != nil {
					return err
				}
				return f.Close()
			}},
			operation{do: func(ctx context.Context) error {
				p, err := rt.Exec(ctx, caisson.ID(box.id), caisson.RuntimeExec{Command: []string{program}})
				return finish(ctx, p, err)
			}},
		)
		if err != nil {
			return err
		}
		s.add(newRow("dial.connect", "ms", all[0], "exec in the same sandbox", all[1]).atMostTimes(0.2))
		return nil
	})
}

// dialThroughput compares the speed of a connection into a sandbox, made by Dial, with the speed of a connection over the
// sandbox's wire.
func (s traffic) dialThroughput(ctx context.Context) error {
	return s.withSink(ctx, func(rt *gvisor.Runtime, box *loadSandbox) error {
		sink, err := s.startLoad(ctx, "sink")
		if err != nil {
			return err
		}
		overWire := func(client string) measure { return box.inside("-for=1s", client, sink.addressOn(hostAddress)) }
		dialled := func(way byte) measure {
			return func(ctx context.Context) (samples, error) {
				f, err := rt.Dial(ctx, caisson.ID(box.id), "tcp", fmt.Sprint(sinkPort))
				if err != nil {
					return nil, err
				}
				return transferRate(f, way, time.Second)
			}
		}
		all, err := interleave(ctx, throughputSamples, dialled(toSink), overWire("receive"), dialled(fromSink), overWire("send"))
		if err := errors.Join(err, sink.end()); err != nil {
			return err
		}
		s.add(newSpeed("dial.throughput.in", "Gbit/s", all[0], "the wire", all[1]).atLeastTimes(0.8))
		s.add(newSpeed("dial.throughput.out", "Gbit/s", all[2], "the wire", all[3]).atLeastTimes(0.8))
		return nil
	})
}

// withSink calls f with a sandbox in which a sink of the load program listens on sinkPort, and with a runtime that has this
// sandbox.
func (s traffic) withSink(ctx context.Context, f func(*gvisor.Runtime, *loadSandbox) error) error {
	box, err := s.createLoaded(ctx, s.daemon, nil)
	if err != nil {
		return err
	}
	rt, err := s.openRuntime(s.daemon)
	if err != nil {
		return errors.Join(err, box.remove(ctx))
	}
	_, err = s.api.Exec(ctx, box.id, caisson.ExecRequest{Command: []string{loadPath, "sink", fmt.Sprintf("127.0.0.1:%d", sinkPort)}, Detach: true})
	if err == nil {
		err = waitListening(ctx, rt, caisson.ID(box.id), sinkPort)
	}
	if err == nil {
		err = f(rt, box)
	}
	return errors.Join(err, rt.Close(), box.remove(ctx))
}

// waitListening waits until a program in a sandbox listens on a port of 127.0.0.1.
func waitListening(ctx context.Context, rt *gvisor.Runtime, id caisson.ID, port int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		f, err := rt.Dial(ctx, id, "tcp", fmt.Sprint(port))
		if caisson.KindOf(err) != caisson.Unavailable {
			return errors.Join(err, f.Close())
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("port %d: nothing listens: %w", port, err)
		}
	}
}

// transferRate returns the rate in Gbit/s of one transfer over the connection f to a sink, and closes f. way is toSink or
// fromSink. The measured time ends when the receiver has all data.
func transferRate(f *os.File, way byte, duration time.Duration) (_ samples, err error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{way}); err != nil {
		return nil, err
	}
	block, sum, start := make([]byte, 128<<10), 0, time.Now()
	for sum == 0 || time.Since(start) < duration {
		n := 0
		if way == toSink {
			n, err = conn.Write(block)
		} else {
			n, err = conn.Read(block)
		}
		if err != nil {
			return nil, err
		}
		sum += n
	}
	if way == toSink {
		err = conn.(*net.UnixConn).CloseWrite()
		if err == nil {
			_, err = io.ReadFull(conn, block[:1])
		}
	}
	return samples{float64(sum) * 8 / 1e9 / time.Since(start).Seconds()}, err
}
