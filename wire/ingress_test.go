package wire

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"strings"

	caisson "github.com/caisson-dev/caisson"
)

// Ingress serves connections that name a route in their first line: it answers with "ok" or an error, and then with what comes from
// the sandbox.
func (g *testGateway) Ingress(f *os.File) error {
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go g.serveIngress(c)
		}
	}()
	return nil
}

func (g *testGateway) serveIngress(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	if err != nil {
		return
	}
	conn, err := g.env.DialSandbox(context.Background(), caisson.IngressDial{Route: caisson.ID(strings.TrimSpace(line))})
	if err != nil {
		io.WriteString(c, caisson.MessageOf(err)+"\n")
		return
	}
	defer conn.Close()
	io.WriteString(c, "ok\n")
	go func() {
		io.Copy(conn, r)
		conn.Close()
	}()
	io.Copy(c, conn)
}

// Drop has nothing to drop.
func (*testGateway) Drop(caisson.ID) {}
