package wireproc

import (
	"net"
	"os"

	"github.com/caisson-dev/caisson"
)

// Ingress implements [wire.Gateway].
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

// Drop implements [wire.Gateway].
func (g *gateway) Drop(sandbox caisson.ID) { g.ingress.Drop(sandbox) }
