// Command load contains both ends of the network benchmarks: a model that answers immediately, a sink, and their
// clients. It uses only the standard library, because it also runs inside sandboxes.
//
// A client starts when its standard input ends, and prints its measurements as one JSON array of numbers. A server has
// its listener as descriptor 3, unless it is given an address, and serves until it is killed.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// options are the options of clients.
type options struct {
	n, warm, conns int           // Numbers of measured operations, of uncounted ones before, and of connections (client "rate").
	duration       time.Duration // How long the clients "rate", "send" and "receive" measure.
}

// servers are the functions that serve a connection, by the command-line argument that selects them.
var servers = map[string]func(net.Conn) error{"model": model, "sink": sink}

// clients are the functions that measure a server at an address or a URL, by the command-line argument that selects them. They
// return the measured values.
var clients = map[string]func(options, string) ([]float64, error){
	"call": calls, "rate": rate, "connect": connects, "send": send, "receive": receive,
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

// run executes the server or the client that the command line selects.
func run() error {
	var o options
	flag.IntVar(&o.n, "n", 100, "call, connect: how many are measured")
	flag.IntVar(&o.warm, "warm", 20, "call, connect: how many are made before")
	flag.IntVar(&o.conns, "conns", 32, "rate: calls at once")
	flag.DurationVar(&o.duration, "for", time.Second, "rate, send, receive: how long")
	flag.Parse()
	if serve := servers[flag.Arg(0)]; serve != nil {
		return listen(serve, flag.Arg(1))
	}
	measure := clients[flag.Arg(0)]
	if measure == nil || flag.NArg() != 2 {
		return errors.New("say model, sink, or: call|rate URL, connect|send|receive HOST:PORT")
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	got, err := measure(o, flag.Arg(1))
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(got)
}

// listen calls serve for each connection to address, or to the listener with descriptor 3 if address is "". It returns only after
// an error of the listener.
func listen(serve func(net.Conn) error, address string) (err error) {
	var l net.Listener
	if address == "" {
		l, err = net.FileListener(os.NewFile(3, "listener"))
	} else {
		l, err = net.Listen("tcp", address)
	}
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if err := serve(c); err != nil && !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, "load:", err)
			}
		}()
	}
}

// The first byte that a client sends to a sink: it selects the direction of the data.
const (
	toSink   = 's' // the client sends
	fromSink = 'r' // the sink sends
)

// blockSize is the number of bytes in each write and read: the block size of iperf3.
const blockSize = 128 << 10

// sink serves a connection. If the client sends, sink reads the data to the end and then confirms it with one byte; otherwise it
// writes data until the client closes the connection.
func sink(c net.Conn) error {
	r := bufio.NewReaderSize(c, 1)
	way, err := r.ReadByte()
	if err != nil {
		return err
	}
	block := make([]byte, blockSize)
	if way == fromSink {
		for err == nil {
			_, err = c.Write(block)
		}
		return nil
	}
	for err == nil {
		_, err = c.Read(block)
	}
	if errors.Is(err, io.EOF) {
		_, err = c.Write(block[:1])
	}
	return err
}

// connects establishes connections to addr one after the other, and returns the durations in microseconds.
func connects(o options, addr string) ([]float64, error) {
	return repeat(o, func() (time.Duration, error) {
		start := time.Now()
		c, err := net.Dial("tcp", addr)
		took := time.Since(start)
		if err == nil {
			err = c.Close()
		}
		return took, err
	})
}

// send sends data to the sink at addr, and returns the rate in Gbit/s at which the sink has received it. The measured time ends
// when the sink has confirmed all data.
func send(o options, addr string) ([]float64, error) {
	c, err := open(addr, toSink)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	block, sum, start := make([]byte, blockSize), 0, time.Now()
	for sum == 0 || time.Since(start) < o.duration {
		n, err := c.Write(block)
		if err != nil {
			return nil, err
		}
		sum += n
	}
	if err := c.CloseWrite(); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(c, block[:1]); err != nil {
		return nil, err
	}
	return gigabits(sum, start), nil
}

// receive receives data from the sink at addr, and returns the rate in Gbit/s.
func receive(o options, addr string) ([]float64, error) {
	c, err := open(addr, fromSink)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	block, sum, start := make([]byte, blockSize), 0, time.Now()
	for sum == 0 || time.Since(start) < o.duration {
		n, err := c.Read(block)
		if err != nil {
			return nil, err
		}
		sum += n
	}
	return gigabits(sum, start), nil
}

// open connects to the sink at addr and sends way, the byte that selects the direction of the data.
func open(addr string, way byte) (*net.TCPConn, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	_, err = c.Write([]byte{way})
	return c.(*net.TCPConn), err
}

// gigabits returns the rate in Gbit/s at which n bytes were transferred since the given time.
func gigabits(n int, since time.Time) []float64 {
	return []float64{float64(n) * 8 / 1e9 / time.Since(since).Seconds()}
}

// repeat calls do o.warm times without counting, and then o.n times. It returns the durations of the counted calls in
// microseconds.
func repeat(o options, do func() (time.Duration, error)) ([]float64, error) {
	var all []float64
	for i := range o.warm + o.n {
		took, err := do()
		if err != nil {
			return nil, err
		}
		if i >= o.warm {
			all = append(all, float64(took.Nanoseconds())/1e3)
		}
	}
	return all, nil
}
