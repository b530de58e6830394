package gvisor

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// BenchmarkRestore measures forks of a Node process with a heap of the given size in MB: the time until Restore returns, and
// until the program replies. Nearly all of it is CPU time for copying pages, so a loaded machine is slower in proportion.
func BenchmarkRestore(b *testing.B) {
	for _, megabytes := range []int{0, 150, 600} {
		b.Run(fmt.Sprint(megabytes, "MB"), func(b *testing.B) {
			r := open(b)
			p := nodeProgram(b, "heap.js", fmt.Sprint(megabytes))
			p.command = append([]string{p.command[0], "--max-old-space-size=4096"}, p.command[1:]...)
			p.memory = 4 << 30
			image := p.start(b, r).checkpoint(b)
			var restored, answered time.Duration
			b.ResetTimer()
			for range b.N {
				began := time.Now()
				g := p.restore(b, r, image, "openssl")
				restored += time.Since(began)
				g.ask(b, "ready")
				answered += time.Since(began)
				b.StopTimer()
				if err := r.Destroy(b.Context(), g.id); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(restored.Milliseconds())/float64(b.N), "ms-restore")
			b.ReportMetric(float64(answered.Milliseconds())/float64(b.N), "ms-answer")
		})
	}
}

// BenchmarkOverlay creates sandboxes without and with a workspace. A benchmark of package sentry measures the mount alone.
func BenchmarkOverlay(b *testing.B) {
	for _, with := range []bool{false, true} {
		b.Run(fmt.Sprint(with), func(b *testing.B) {
			r := open(b)
			host := b.TempDir()
			for b.Loop() {
				b.StopTimer()
				id := caisson.NewID(caisson.SandboxPrefix)
				spec := newSpec(b, r, id)
				if with {
					spec.Mounts = []caisson.RuntimeMount{newWorkspace(b, host, 1000, 1000).mount}
				}
				b.StartTimer()
				if err := r.Create(b.Context(), id, spec); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := r.Destroy(b.Context(), id); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkWriters measures the duration of recorded system calls inside a sandbox.
func BenchmarkWriters(b *testing.B) {
	for _, c := range []struct{ name, do string }{
		{"read", "os.close(os.open('f', os.O_RDONLY))"},
		{"open", "os.close(os.open('f', os.O_WRONLY))"},
		{"open-absolute", "os.close(os.open('/workspace/d/d/f', os.O_WRONLY))"},
		{"make-remove", "os.mkdir('x'); os.rmdir('x')"},
		{"make-remove-absolute", "os.mkdir('/workspace/d/d/x'); os.rmdir('/workspace/d/d/x')"},
		{"chmod", "os.chmod('f', 0o600)"},
		{"rename-back", "os.rename('d/f', 'd/g'); os.rename('d/g', 'd/f')"},
		{"elsewhere", "os.close(os.open('/tmp/f', os.O_WRONLY | os.O_CREAT))"},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := open(b)
			w := newWorkspace(b, b.TempDir(), 1000, 1000)
			w.mount.Overlay.Hide = []string{".env"}
			id := caisson.NewID(caisson.SandboxPrefix)
			spec := newSpec(b, r, id)
			spec.Mounts = []caisson.RuntimeMount{w.mount}
			create(b, r, id, spec)
			out, status := run(b, r, id, "/usr/bin/python3", "-c", fmt.Sprintf(`
import os, time
os.chdir('/workspace'); os.makedirs('d/d')
for f in ('f', 'd/f', 'd/d/f'): open(f, 'w').close()
best = 1e9
for round in range(10):
    began = time.perf_counter()
    for i in range(1000):
        %s
    best = min(best, time.perf_counter() - began)
print(int(best * 1e6))`, c.do))
			ns, err := strconv.Atoi(strings.TrimSpace(out))
			if err != nil || !status.Success() {
				b.Fatalf("%s, %v", out, status)
			}
			b.ReportMetric(float64(ns), "ns-inside")
		})
	}
}
