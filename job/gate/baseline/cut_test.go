package baseline_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
	"github.com/caisson-dev/caisson/job/gate/overlaytest"
)

// Changes to a host directory that was too large to be recorded are not applied based on a guess.
func TestCompareUnrecorded(t *testing.T) {
	o := overlaytest.New(t, overlaytest.PrepareHost(t))
	mask, err := baseline.NewMask(nil, nil)
	gatetest.Must(t, err)
	for limit := range 8 {
		cut, err := os.Create(fmt.Sprintf("%s/cut%d", o.Top, limit))
		gatetest.Must(t, err)
		defer cut.Close()
		sum, err := baseline.ScanUpTo(t.Context(), o.Dir("host"), mask, cut, limit)
		gatetest.Must(t, err)
		if !sum.Cut {
			t.Fatalf("limit %d: not cut", limit)
		}
		o.Manifest = cut
		gatetest.Write(t, o.Box+"/dir/b.txt", "new\n")
		gatetest.Write(t, o.Box+"/z", "new\n")
		diffs, _ := o.Compare(compare.Options{})
		for _, d := range diffs {
			if d.Change.Path == "z" && d.Change.Verdict != caisson.VerdictConflict {
				t.Errorf("limit %d: %s", limit, overlaytest.Summary(diffs))
			}
			if d.Change.Path == "dir/b.txt" && d.Change.Verdict == "" && d.Change.Kind != caisson.ChangeModified {
				t.Errorf("limit %d: %s", limit, overlaytest.Summary(diffs))
			}
		}
	}
}
