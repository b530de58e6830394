package wireproc

import (
	"net"
	"os"

	"github.com/caisson-dev/caisson"
)

// Ingress implements [wire.Gateway]: it serves routes on the listening socket f.
func (g *gateway) Ingress(f *os.File) error {
	defer f.Close() // net.FileListener duplicates the descriptor
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	go func() {
		if err := g.ingress.Serve(l); err != nil {
			g.env.Log.Error("routes are not served any more", "err", err)
		}
	}()
	return nil
}

// Drop implements [wire.Gateway]: it closes the connections of the ingress to the sandbox.
func (g *gateway) Drop(sandbox caisson.ID) { g.ingress.Drop(sandbox) }
