package wire

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// A tap is the link endpoint of a stack: a TAP descriptor.
//
// gVisor's fdbased endpoint would work, but costs an idle wire an OS thread blocked in poll, an eventfd and 64 KB of read
// buffers. A tap waits in Go's poller and takes a buffer only once a frame is available.
type tap struct {
	file   *os.File        // the TAP
	conn   syscall.RawConn // reads and writes frames with the descriptor of file
	filter *filter         // decides which frames from the sandbox are passed to the stack
	bufs   *sync.Pool      // pool of *[maxFrame]byte; shared by all wires
	// offload omits checksums from sent frames. Checksums of received frames are never verified: frames cross memory only, and a
	// sandbox that corrupts its frames affects only itself.
	offload bool
	done    sync.WaitGroup // waits for the goroutine that runs read

	framesOut, bytesOut, framesIn, bytesIn, droppedOut atomic.Uint64 // from (Out) and to (In) the sandbox; dropped by filter

	mu         sync.RWMutex
	dispatcher stack.NetworkDispatcher // receives the frames; nil unless attached; guarded by mu
	onClose    func()                  // called by Close; guarded by mu
}

var _ stack.LinkEndpoint = (*tap)(nil)

// newTap returns a tap that reads and writes frames with file, which it then owns. file must be non-blocking.
func newTap(file *os.File, bufs *sync.Pool) (*tap, error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &tap{file: file, conn: conn, filter: newFilter(), bufs: bufs}, nil
}

func (t *tap) MTU() uint32                             { return MTU }
func (t *tap) SetMTU(uint32)                           {}
func (t *tap) MaxHeaderLength() uint16                 { return ethernetHeader }
func (t *tap) LinkAddress() tcpip.LinkAddress          { return tcpip.LinkAddress(gatewayMAC) }
func (t *tap) SetLinkAddress(tcpip.LinkAddress)        {}
func (t *tap) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }
func (t *tap) Wait()                                   { t.done.Wait() }

func (t *tap) Capabilities() stack.LinkEndpointCapabilities {
	c := stack.CapabilityResolutionRequired | stack.CapabilityRXChecksumOffload
	if t.offload {
		c |= stack.CapabilityTXChecksumOffload
	}
	return c
}

// Attach starts the reader, which passes frames to d. If d is nil, Attach stops the reader and closes the TAP.
func (t *tap) Attach(d stack.NetworkDispatcher) {
	t.mu.Lock()
	defer t.mu.Unlock()
	started := t.dispatcher != nil
	t.dispatcher = d
	switch {
	case d == nil:
		t.file.Close() // stops the reader; an error can be ignored
	case !started:
		t.done.Go(t.read)
	}
}

func (t *tap) IsAttached() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.dispatcher != nil
}

func (t *tap) Close() {
	t.mu.RLock()
	f := t.onClose
	t.mu.RUnlock()
	if f != nil {
		f()
	}
}

func (t *tap) SetOnCloseAction(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.onClose = f
}

// read delivers frames until the TAP is closed or its device is removed. A panic here deliberately crashes the process, because
// the state of the stack would be undefined.
func (t *tap) read() {
	for {
		buf := (*[maxFrame]byte)(nil)
		n := 0
		var errno error
		err := t.conn.Read(func(fd uintptr) bool {
			buf = t.bufs.Get().(*[maxFrame]byte)
			n, errno = unix.Read(int(fd), buf[:])
			if errno == unix.EAGAIN || errno == unix.EINTR {
				t.bufs.Put(buf)
				return false
			}
			return true
		})
		if err != nil {
			return
		}
		if errno != nil {
			t.bufs.Put(buf)
			return
		}
		t.deliver(buf[:n])
		t.bufs.Put(buf)
	}
}

// deliver passes a frame to the stack if the filter admits it. It keeps no reference to frame.
func (t *tap) deliver(frame []byte) {
	t.framesOut.Add(1)
	t.bytesOut.Add(uint64(len(frame)))
	t.mu.RLock()
	d := t.dispatcher
	t.mu.RUnlock()
	if d == nil || !t.filter.admit(frame) {
		t.droppedOut.Add(1)
		return
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
		Payload: buffer.MakeWithView(buffer.NewViewWithData(frame)),
	})
	defer pkt.DecRef()
	if t.ParseHeader(pkt) {
		d.DeliverNetworkPacket(pkt.NetworkProtocolNumber, pkt)
	}
}

func (t *tap) AddHeader(pkt *stack.PacketBuffer) {
	header.Ethernet(pkt.LinkHeader().Push(ethernetHeader)).Encode(&header.EthernetFields{
		SrcAddr: tcpip.LinkAddress(gatewayMAC),
		DstAddr: tcpip.LinkAddress(sandboxMAC), // the only other host on the wire
		Type:    pkt.NetworkProtocolNumber,
	})
}

func (t *tap) ParseHeader(pkt *stack.PacketBuffer) bool {
	h, ok := pkt.LinkHeader().Consume(ethernetHeader)
	if ok {
		pkt.NetworkProtocolNumber = header.Ethernet(h).Type()
	}
	return ok
}

// WritePackets sends frames to the sandbox. It drops frames for which the TAP has no room.
func (t *tap) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	sent := 0
	for _, pkt := range pkts.AsSlice() {
		slices := pkt.AsSlices()
		n := 0
		var errno error
		err := t.conn.Write(func(fd uintptr) bool {
			n, errno = unix.Writev(int(fd), slices)
			return errno != unix.EINTR
		})
		if err != nil {
			return sent, &tcpip.ErrClosedForSend{}
		}
		if errno != nil {
			return sent, &tcpip.ErrNoBufferSpace{}
		}
		t.framesIn.Add(1)
		t.bytesIn.Add(uint64(n))
		sent++
	}
	return sent, nil
}

func (t *tap) stats() Stats {
	return Stats{
		FramesOut:  t.framesOut.Load(),
		BytesOut:   t.bytesOut.Load(),
		FramesIn:   t.framesIn.Load(),
		BytesIn:    t.bytesIn.Load(),
		DroppedOut: t.droppedOut.Load(),
	}
}
