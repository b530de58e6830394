package wire

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	caisson "github.com/caisson-dev/caisson"
)

// BenchmarkAttach attaches one sandbox at a time.
func BenchmarkAttach(b *testing.B) {
	w := newWorld(b)
	w.pid(b)
	var took []time.Duration
	for range b.N {
		id := caisson.NewID(caisson.SandboxPrefix)
		start := time.Now()
		ns, err := w.Attach(b.Context(), id, specOf(id))
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
		b.StopTimer()
		if err := w.Detach(b.Context(), id); err != nil {
			b.Fatal(err)
		}
		ns.Close()
		b.StartTimer()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*95/100].Microseconds()), "p95-µs")
}

// BenchmarkAttach50 attaches fifty sandboxes concurrently.
func BenchmarkAttach50(b *testing.B) {
	w := newWorld(b)
	w.pid(b)
	for range b.N {
		var wait sync.WaitGroup
		ids := make([]caisson.ID, 50)
		for i := range ids {
			ids[i] = caisson.NewID(caisson.SandboxPrefix)
			wait.Go(func() {
				ns, err := w.Attach(b.Context(), ids[i], specOf(ids[i]))
				if err != nil {
					b.Error(err)
					return
				}
				ns.Close()
			})
		}
		wait.Wait()
		b.StopTimer()
		for _, id := range ids {
			if err := w.Detach(b.Context(), id); err != nil {
				b.Error(err)
			}
		}
		b.StartTimer()
	}
}

// BenchmarkIdle measures the cost of an idle wire in the wire process.
func BenchmarkIdle(b *testing.B) {
	const n = 50
	for range b.N {
		w := newWorld(b)
		before, threads := private(b, w.pid(b)), tasks(b, w.pid(b))
		for range n {
			_, ns := w.attach(b)
			if err := inside(b, ns, func() error { return ping(GatewayIPv4, deadline) }); err != nil {
				b.Fatal(err)
			}
		}
		after := private(b, w.pid(b))
		b.ReportMetric(float64(before), "kB-without")
		b.ReportMetric(float64(after-before)/n, "kB/wire")
		b.ReportMetric(float64(tasks(b, w.pid(b))-threads), "threads-more")
		w.stop()
	}
}

func private(b *testing.B, pid int) int {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	sum := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); fields[0] == "Private_Dirty:" {
			kb, err := strconv.Atoi(fields[1])
			if err != nil {
				b.Fatal(err)
			}
			sum += kb
		}
	}
	return sum
}

func tasks(b *testing.B, pid int) int {
	t, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		b.Fatal(err)
	}
	return len(t)
}
