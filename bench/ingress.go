package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/runtime/gvisor"
)

// ingress has the benchmarks of the ingress.
type ingress struct {
	*suite
	net traffic // Starts the load program.
}

// ingressBenchmark converts a benchmark of the ingress to a benchmark of suite.
func ingressBenchmark(f func(ingress, context.Context) error) func(*suite, context.Context) error {
	return func(s *suite, ctx context.Context) error { return f(ingress{s, traffic{s}}, ctx) }
}

// modelPort is the port of the load program's HTTP server in a sandbox, on 127.0.0.1.
const modelPort = 7001

// ingressConnections is the number of concurrent connections in the benchmarks that measure requests per second.
const ingressConnections = 32

// An ingressSetup consists of a daemon with an ingress, a sandbox with an HTTP server, and a route that leads to the server and
// resumes the sandbox.
type ingressSetup struct {
	*daemon
	box     *loadSandbox    // The sandbox with the HTTP server.
	runtime *gvisor.Runtime // A runtime in this process that has the sandbox.
	host    string          // Host and port of the ingress.
}

// startIngress starts the daemon, the sandbox and its server, and creates the route.
func (s ingress) startIngress(ctx context.Context, name string) (_ *ingressSetup, err error) {
	free, err := freeAddress()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(free)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(s.Dir, name+".yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "ingress: {listen: '127.0.0.1:%s'}\n", port), 0o600); err != nil {
		return nil, err
	}
	t := &ingressSetup{host: "localhost:" + port}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.end(ctx))
		}
	}()
	if t.daemon, err = startDaemon(ctx, s.Config, name, "--config", file); err != nil {
		return nil, err
	}
	if t.box, err = s.net.createLoaded(ctx, t.daemon, nil); err != nil {
		return nil, err
	}
	if t.runtime, err = s.openRuntime(t.daemon); err != nil {
		return nil, err
	}
	command := []string{loadPath, "model", fmt.Sprintf("127.0.0.1:%d", modelPort)}
	if _, err := t.api.Exec(ctx, t.box.id, caisson.ExecRequest{Command: command, Detach: true}); err != nil {
		return nil, err
	}
	if err := waitListening(ctx, t.runtime, caisson.ID(t.box.id), modelPort); err != nil {
		return nil, err
	}
	const most = 1e6 // limit on the route's requests per second that no client can reach
	_, err = t.api.Routes.PutRoute(ctx, "model", caisson.RouteSpec{
		Path: "/v1", Sandbox: t.box.id, Port: modelPort, Auth: caisson.RouteAuth{Kind: caisson.RouteAuthNone}, Resume: true,
		Limits: caisson.RouteLimits{Client: caisson.RouteRate{PerSecond: most, Burst: most}, MaxClient: 2 * ingressConnections},
	})
	return t, err
}

// end removes the sandbox and stops the daemon.
func (t *ingressSetup) end(ctx context.Context) (err error) {
	if t.runtime != nil {
		err = t.runtime.Close()
	}
	if t.box != nil {
		err = errors.Join(err, t.box.remove(context.WithoutCancel(ctx)))
	}
	if t.daemon != nil {
		err = errors.Join(err, t.stop())
	}
	return err
}

// dialled returns a measure that runs a client of the load program on the host. The connections of the client are made with
// [gvisor.Runtime.Dial] and lead to the server in the sandbox.
func (s ingress) dialled(t *ingressSetup, connections int, args ...string) measure {
	return func(ctx context.Context) (_ samples, err error) {
		var files []*os.File
		defer func() {
			for _, f := range files {
				err = errors.Join(err, f.Close())
			}
		}()
		for range connections {
			f, err := t.runtime.Dial(ctx, caisson.ID(t.box.id), "tcp", fmt.Sprint(modelPort))
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
		return s.net.runLoad(ctx, append(slices.Clip(args), "fd://sandbox/v1/chat/completions"), func(cmd *exec.Cmd) { cmd.ExtraFiles = files }, nil)
	}
}

// added compares the duration of requests through the ingress with that of requests over a connection made with
// [gvisor.Runtime.Dial].
func (s ingress) added(ctx context.Context) error {
	t, err := s.startIngress(ctx, "ingress-added")
	if err != nil {
		return err
	}
	args := callArgs(chatURL(t.host))
	all, err := interleave(ctx, s.net.callRounds(), s.net.onHost(args...), s.dialled(t, 1, args[:len(args)-1]...))
	if err := errors.Join(err, t.end(ctx)); err != nil {
		return err
	}
	all = toMilliseconds(all)
	s.add(newRow("ingress.added", "ms", all[0], "direct by Dial", all[1]).atMostOver(0.3))
	return nil
}

// rate compares the numbers of requests per second through the ingress and through nginx. Both forward to the same server on the
// host. The ingress runs in a separate process (see the command in bench/gateway) instead of a wire process.
func (s ingress) rate(ctx context.Context) (err error) {
	model, err := s.net.startLoad(ctx, "model")
	if err != nil {
		return err
	}
	server := model.addressOn(hostAddress)
	alone, err := s.net.startServer(ctx, gatewayProgram, "ingress", server)
	if err != nil {
		return errors.Join(err, model.end())
	}
	client := func(host string) measure {
		return s.net.onHost("-for=800ms", fmt.Sprintf("-conns=%d", ingressConnections), "rate", chatURL(host))
	}
	baseline, sides := withoutNginx, []measure{client(alone.addressOn("localhost"))}
	dir := filepath.Join(s.Dir, "ingress-nginx")
	if err = os.Mkdir(dir, 0o700); err == nil {
		var proxy *nginx
		if proxy, err = startNginx(ctx, dir, server); proxy != nil {
			defer func() { err = errors.Join(err, proxy.end()) }()
			baseline, sides = "nginx proxy_pass", append(sides, client(proxy.address))
		}
	}
	var all []samples
	if err == nil {
		all, err = interleave(ctx, 4, sides...)
	}
	if err := errors.Join(err, alone.end(), model.end()); err != nil {
		return err
	}
	row := newSpeed("ingress.rate", "calls/s", all[0], baseline, append(all, nil)[1])
	if len(all) > 1 {
		row = row.atLeastTimes(0.3)
	}
	s.add(row)
	return nil
}

// inside compares the numbers of requests per second to a server in a sandbox through the ingress and over connections made with
// [gvisor.Runtime.Dial].
func (s ingress) inside(ctx context.Context) error {
	t, err := s.startIngress(ctx, "ingress-inside")
	if err != nil {
		return err
	}
	args := []string{"-for=800ms", fmt.Sprintf("-conns=%d", ingressConnections), "rate"}
	all, err := interleave(ctx, 4, s.net.onHost(append(slices.Clip(args), chatURL(t.host))...), s.dialled(t, ingressConnections, args...))
	if err := errors.Join(err, t.end(ctx)); err != nil {
		return err
	}
	s.add(newSpeed("ingress.inside", "calls/s", all[0], "direct by Dial", all[1]))
	return nil
}

// firstByte makes a request on a new connection to the ingress, and returns when the beginning of the response has arrived.
func (t *ingressSetup) firstByte(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", t.host)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "%s /v1/first HTTP/1.1\r\nHost: %s\r\n\r\n", http.MethodGet, t.host); err != nil {
		return err
	}
	head := make([]byte, len("HTTP/1.1 200"))
	if _, err := io.ReadFull(conn, head); err != nil {
		return err
	}
	if string(head) != "HTTP/1.1 200" {
		return fmt.Errorf("the answer begins with %q", head)
	}
	return nil
}

// wakeSuspended compares the time from a request through the ingress to the first byte of the response for a suspended sandbox
// with that for a running sandbox.
func (s ingress) wakeSuspended(ctx context.Context) error {
	t, err := s.startIngress(ctx, "wake-suspended")
	if err != nil {
		return err
	}
	all, err := compare(ctx, s.N,
		operation{before: func(ctx context.Context) error { _, err := t.api.Suspend(ctx, t.box.id); return err }, do: t.firstByte},
		operation{do: t.firstByte},
	)
	if err := errors.Join(err, t.end(ctx)); err != nil {
		return err
	}
	s.add(newRow("wake.suspended", "ms", all[0], "the same, running", all[1]).atMostOver(20))
	return nil
}

// useMemory is a command that allocates 100 MB of memory, then creates the file /tmp/held, and keeps the memory.
var useMemory = []string{"/usr/bin/perl", "-e", `my $x = "x" x 100_000_000; open(my $f, ">", "/tmp/held") or die; close $f; sleep 100_000`}

// memoryInUse is a command that succeeds after the command useMemory has allocated its memory in the same sandbox.
var memoryInUse = []string{"/usr/bin/test", "-f", "/tmp/held"}

// wakePaused compares the time from a request through the ingress to the first byte of the response, for a paused sandbox with
// 100 MB of memory, with the time in which runsc restores a sandbox with as much memory.
func (s ingress) wakePaused(ctx context.Context) (err error) {
	t, err := s.startIngress(ctx, "wake-paused")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.end(ctx)) }()
	if _, err := t.api.Exec(ctx, t.box.id, caisson.ExecRequest{Command: useMemory, Detach: true}); err != nil {
		return err
	}
	bare, err := s.baseline.bundle(ctx, useMemory...)
	if err != nil {
		return err
	}
	image, restored := filepath.Join(s.baseline.dir, "held"), ""
	err = s.baseline.start(ctx, bare)
	for _, held := range []func() error{
		func() error { return t.execute(ctx, t.box.id, memoryInUse...) },
		func() error { return s.baseline.runCommand(ctx, append([]string{"exec", bare}, memoryInUse...)...) },
	} {
		for end := time.Now().Add(time.Minute); err == nil && held() != nil; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				err = errors.New("the memory is not in use")
			}
		}
	}
	if err == nil {
		err = s.baseline.checkpoint(ctx, bare, image)
	}
	if err := errors.Join(err, s.baseline.remove(ctx, bare)); err != nil {
		return err
	}
	all, err := compare(ctx, s.N/2,
		operation{before: func(ctx context.Context) error { _, err := t.api.Pause(ctx, t.box.id); return err }, do: t.firstByte},
		operation{
			before: func(ctx context.Context) (err error) {
				restored, err = s.baseline.bundle(ctx, useMemory...)
				return err
			},
			do:    func(ctx context.Context) error { return s.baseline.restore(ctx, restored, image) },
			after: func(ctx context.Context) error { return s.baseline.remove(ctx, restored) },
		},
	)
	if err := errors.Join(err, os.RemoveAll(image)); err != nil {
		return err
	}
	s.add(newRow("wake.paused", "ms", all[0], "runsc restore", all[1]).atMostTimes(1.3))
	return nil
}

// pausedSandboxes is the number of sandboxes that the benchmark paused measures.
const pausedSandboxes = 200

// paused measures the resources that paused sandboxes use: the memory of the daemon and the wire process that each one adds, and
// the processor time of both processes while they are idle. Paused sandboxes have no processes of their own.
func (s *suite) paused(ctx context.Context) (err error) {
	d, err := startDaemon(ctx, s.Config, "paused")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	id, err := d.create(ctx) // Not measured: the first sandbox also allocates what all sandboxes share.
	if err != nil {
		return err
	}
	if _, err := d.api.Pause(ctx, id); err != nil {
		return err
	}
	engine, wire, err := d.anonymousMemory(ctx)
	if err != nil {
		return err
	}
	ids := []string{id}
	for range pausedSandboxes {
		id, err := d.create(ctx)
		if err != nil {
			return err
		}
		ids = append(ids, id)
		if _, err := d.api.Pause(ctx, id); err != nil {
			return err
		}
	}
	allEngine, allWire, err := d.anonymousMemory(ctx)
	if err != nil {
		return err
	}
	instance, err := os.ReadFile(filepath.Join(d.dir, "instance"))
	if err != nil {
		return err
	}
	for _, id := range ids {
		if pids, _ := cgroupProcesses(filepath.Join("/caisson", string(instance), id)); len(pids) > 0 {
			return fmt.Errorf("%s is paused and has %d processes", id, len(pids))
		}
	}
	used, err := d.processorTime(ctx)
	if err != nil {
		return err
	}
	more := (allEngine + allWire - engine - wire) / pausedSandboxes
	s.add(newRow("sandbox.paused.memory", "MB", samples{more}, "", nil).under(0.1))
	s.add(newRow("sandbox.paused.processor", "ms", samples{used}, "", nil).under(100))
	return d.removeAll(ctx, ids)
}
