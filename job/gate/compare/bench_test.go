package compare_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
	"github.com/caisson-dev/caisson/job/gate/overlay"
	"github.com/caisson-dev/caisson/job/gate/overlaytest"
)

// BenchmarkDiff measures a diff of a directory with 100,000 files of which a sandbox has changed 1,000.
func BenchmarkDiff(b *testing.B) {
	o := overlaytest.New(b, func(host string) {
		for i := range 1000 {
			dir := fmt.Sprintf("%s/d%02d/d%02d", host, i/50, i%50)
			gatetest.Must(b, os.MkdirAll(dir, 0o755))
			for j := range 100 {
				gatetest.Must(b, os.WriteFile(fmt.Sprintf("%s/f%02d.go", dir, j), fmt.Appendf(nil, "%s%d %d\n", gatetest.Seven, i, j), 0o644))
			}
		}
	})
	for i := range 1000 {
		path := fmt.Sprintf("%s/d%02d/d%02d/f%02d.go", o.Box, i/50, i%50, i%100)
		switch i % 10 {
		case 0:
			gatetest.Must(b, os.Remove(path))
		case 1:
			gatetest.Must(b, os.Rename(path, path+".renamed"))
		case 2:
			gatetest.Must(b, os.Chmod(path, 0o755))
		case 3:
			gatetest.Must(b, os.WriteFile(path+".new", fmt.Appendf(nil, "new %d\n", i), 0o644))
		default:
			gatetest.Must(b, os.WriteFile(path, fmt.Appendf(nil, "%sedited %d\n", gatetest.Seven, i), 0o644))
		}
	}
	b.Run("scan", func(b *testing.B) {
		mask, err := baseline.NewMask(baseline.DefaultHidden(), nil)
		gatetest.Must(b, err)
		for b.Loop() {
			var out bytes.Buffer
			_, err := baseline.Scan(b.Context(), o.Dir("host"), mask, &out)
			gatetest.Must(b, err)
		}
	})
	n := 0
	fresh := func(b *testing.B) *os.File {
		n++
		dir := filepath.Join(o.Top, fmt.Sprintf("bench%d", n))
		gatetest.Must(b, os.Mkdir(dir, 0o755))
		return gatetest.OpenDir(b, dir)
	}
	b.Run("base", func(b *testing.B) {
		for b.Loop() {
			gatetest.Must(b, baseline.SaveBase(b.Context(), o.Dir("host"), o.Manifest, fresh(b), baseline.Limits{}))
		}
	})
	b.Run("freeze and compare", func(b *testing.B) {
		for b.Loop() {
			dst := fresh(b)
			var marked bytes.Buffer
			gatetest.Must(b, overlay.Mark(b.Context(), o.Dir("upper"), &marked))
			f, err := overlay.Freeze(b.Context(), o.Dir("upper"), &marked, dst, overlay.FreezeLimits{})
			gatetest.Must(b, err)
			f.Close()
			merged, err := overlay.OpenMerged(dst)
			gatetest.Must(b, err)
			c, err := compare.Changes(context.Background(), o.Dir("host"), o.Manifest, o.Dir("base"), dst, merged, compare.Options{Patch: true})
			gatetest.Must(b, err)
			merged.Close()
			if len(c.Differences) != 1000 {
				b.Fatalf("%d differences", len(c.Differences))
			}
		}
	})
}
