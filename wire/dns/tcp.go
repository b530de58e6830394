package dns

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"time"
)

const (
	tcpIdle    = 10 * time.Second // time limit for receiving a query, and for sending an answer
	tcpQueries = 1000             // queries answered on one connection
)

// ServeTCP answers the queries on conn one after the other. It closes conn when the peer does, after 1000 queries or 10 seconds
// without one, after an invalid query, if there are too many connections, or, during a lookup, when ctx ends.
func (r *Resolver) ServeTCP(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	select {
	case r.conns <- struct{}{}:
		defer func() { <-r.conns }()
	default:
		return
	}
	buf := make([]byte, maxQuery)
	for range tcpQueries {
		if conn.SetDeadline(time.Now().Add(tcpIdle)) != nil {
			return
		}
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(size[:]))
		if n > maxQuery {
			return
		}
		if _, err := io.ReadFull(conn, buf[:n]); err != nil {
			return
		}
		answer := r.Answer(ctx, buf[:n], true)
		if answer == nil || ctx.Err() != nil || conn.SetDeadline(time.Now().Add(tcpIdle)) != nil {
			return
		}
		framed := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(answer)), uint16(len(answer)))
		if _, err := conn.Write(append(framed, answer...)); err != nil {
			return
		}
	}
}
