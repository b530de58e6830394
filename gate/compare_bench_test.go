package gate

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkDiff measures what a diff of a directory with 100,000 files takes of which a sandbox has changed 1,000.
func BenchmarkDiff(b *testing.B) {
	o := newOverlay(b, func(host string) {
		for i := range 1000 {
			dir := fmt.Sprintf("%s/d%02d/d%02d", host, i/50, i%50)
			check(b, os.MkdirAll(dir, 0o755))
			for j := range 100 {
				check(b, os.WriteFile(fmt.Sprintf("%s/f%02d.go", dir, j), fmt.Appendf(nil, "%s%d %d\n", seven, i, j), 0o644))
			}
		}
	})
	for i := range 1000 {
		path := fmt.Sprintf("%s/d%02d/d%02d/f%02d.go", o.box, i/50, i%50, i%100)
		switch i % 10 {
		case 0:
			check(b, os.Remove(path))
		case 1:
			check(b, os.Rename(path, path+".renamed"))
		case 2:
			check(b, os.Chmod(path, 0o755))
		case 3:
			check(b, os.WriteFile(path+".new", fmt.Appendf(nil, "new %d\n", i), 0o644))
		default:
			check(b, os.WriteFile(path, fmt.Appendf(nil, "%sedited %d\n", seven, i), 0o644))
		}
	}
	b.Run("scan", func(b *testing.B) {
		mask, err := NewMask(DefaultHidden(), nil)
		check(b, err)
		for b.Loop() {
			var out bytes.Buffer
			_, err := Scan(b.Context(), o.dir("host"), mask, &out)
			check(b, err)
		}
	})
	n := 0
	fresh := func(b *testing.B) *os.File {
		n++
		dir := filepath.Join(o.top, fmt.Sprintf("bench%d", n))
		check(b, os.Mkdir(dir, 0o755))
		return openTestDir(b, dir)
	}
	b.Run("base", func(b *testing.B) {
		for b.Loop() {
			check(b, Base(b.Context(), o.dir("host"), o.manifest, fresh(b), BaseLimits{}))
		}
	})
	b.Run("freeze and compare", func(b *testing.B) {
		for b.Loop() {
			dst := fresh(b)
			var marked bytes.Buffer
			check(b, Mark(b.Context(), o.dir("upper"), &marked))
			f, err := Freeze(b.Context(), o.dir("upper"), &marked, dst, FreezeLimits{})
			check(b, err)
			f.Close()
			merged, err := MergedDir(dst)
			check(b, err)
			c, err := Compare(context.Background(), o.dir("host"), o.manifest, o.dir("base"), dst, merged, CompareOptions{Patch: true})
			check(b, err)
			merged.Close()
			if len(c.Differences) != 1000 {
				b.Fatalf("%d differences", len(c.Differences))
			}
		}
	})
}
