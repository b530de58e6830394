package compare

import (
	"fmt"
	"hash/maphash"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
)

// Finding renames takes bounded time for any number of added and removed files.
func TestRenamesAreBounded(t *testing.T) {
	c := &comparer{ctx: t.Context(), host: baseline.NewHostReader(t.Context(), -1)}
	var lines strings.Builder
	for i := range 8000 {
		fmt.Fprintln(&lines, i)
	}
	var removed, added []*difference
	for i := range 400 {
		data := fmt.Appendf(nil, "%d\n%s", i%2, lines.String())
		r := &difference{path: fmt.Sprint("r", i), host: baseline.State{Stat: fsat.Stat{Type: fsat.TypeFile}, Data: data}}
		r.Change.Kind = caisson.ChangeRemoved
		removed = append(removed, r)
		a := &difference{path: fmt.Sprint("a", i), host: baseline.State{Stat: fsat.Stat{Type: fsat.TypeFile}, Data: data}}
		a.Change.Kind = caisson.ChangeAdded
		added = append(added, a)
	}
	seed := maphash.MakeSeed()
	left := maxRenameBytes
	from, err := c.texts(removed, &left, func(d *difference) ([]byte, error) { return d.host.Data, nil }, seed)
	gatetest.Must(t, err)
	to, err := c.texts(added, &left, func(d *difference) ([]byte, error) { return d.host.Data, nil }, seed)
	gatetest.Must(t, err)
	start := time.Now()
	gatetest.Must(t, c.pair(from, to))
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
	renamed := 0
	for _, d := range added {
		if d.Change.Kind == caisson.ChangeRenamed {
			renamed++
		}
	}
	if renamed == 0 {
		t.Errorf("no renames were found")
	}
}
