package flow

import (
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

func TestBudget(t *testing.T) {
	b := NewProcessLimits(100, 8)
	b.addForwarder()
	b.addForwarder()
	first := 0
	for b.acquireFlow(first) {
		first++
	}
	if first != 75 {
		t.Errorf("one of two took %d of 100, want 75", first)
	}
	second := 0
	for b.acquireFlow(second) {
		second++
	}
	if second != 12 {
		t.Errorf("the other took %d, want its share of what was left, 12", second)
	}
	b.release(false)
	if b.acquireFlow(first - 1) {
		t.Error("who has most got one more while they are scarce")
	}
	wide := 0
	for b.acquireWide(wide) {
		wide++
	}
	if wide != 6 {
		t.Errorf("%d wide flows, want 6", wide)
	}
	b.release(true)
	if !b.acquireWide(wide) {
		t.Error("a wide flow that ended is not free")
	}
	var none *ProcessLimits
	if !none.acquireFlow(1e9) || !none.acquireWide(1e9) {
		t.Error("no budget has no room")
	}
}

// The flows of all forwarders together are limited, and returned when they end.
func TestSharedBudget(t *testing.T) {
	b := NewProcessLimits(8, 0)
	w := newWorld(t, func(c *Config, _ *timeouts) { c.ProcessLimits = b })
	w.listen("192.0.2.1:7", echo)
	w.policy(allowAll)
	var conns []net.Conn
	for range 6 {
		conns = append(conns, w.mustDial("192.0.2.1:7"))
	}
	for b.acquireFlow(0) { // another forwarder
	}
	w.mustRefuse("192.0.2.1:7")
	w.reportedDenied("flow", "all sandboxes together")
	if s := w.f.Stats(); s.Limited != 1 {
		t.Errorf("%+v", s)
	}
	for _, c := range conns {
		c.Close()
	}
	eventually(t, w.empty)
	wantEcho(t, w.mustDial("192.0.2.1:7"), "hello")
}

// A sandbox that fills connections in both directions and never reads makes each hold only a bounded amount. The sandbox's stack
// is in this process, too.
func TestNarrowMemory(t *testing.T) {
	const flows, most = 100, 256 << 10 // per flow, including a part of the sandbox's stack
	small := func(c *Config, _ *timeouts) { c.ProcessLimits = NewProcessLimits(2*flows, 0) }
	w := newWorld(t, small)
	// Otherwise the sandbox's stack would buffer megabytes.
	send := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: 16 << 10, Max: 16 << 10}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: 16 << 10, Max: 16 << 10}
	for _, o := range []tcpip.SettableTransportProtocolOption{&send, &receive} {
		if err := w.guest.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			t.Fatal(err)
		}
	}
	w.listen("192.0.2.1:7", func(c *net.TCPConn) {
		b := make([]byte, 4<<10)
		for {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	})
	w.policy(allowAll)
	before := heapNow()
	for range flows {
		c := w.mustDial("192.0.2.1:7")
		c.SetDeadline(time.Time{})
		go func() {
			b := make([]byte, 4<<10)
			for {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}()
	}
	var last int64
	eventually(t, func() error { // until no more data moves
		s := w.f.Stats()
		moved := s.BytesIn + s.BytesOut
		defer func() { last = moved }()
		if moved != last || s.BytesOut < flows*narrowChunk {
			return fmt.Errorf("%d bytes carried, %d before", moved, last)
		}
		return nil
	})
	if got := int64(heapNow()) - int64(before); got > flows*most {
		t.Errorf("%d KiB for each flow, want at most %d", got/flows>>10, most>>10)
	} else {
		t.Logf("%d KiB for each flow", got/flows>>10)
	}
}

func heapNow() uint64 {
	runtime.GC()
	runtime.GC() // pools are emptied by the second collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
