package sqlite

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// sample returns a sandbox of typical size: about 1.5 kB as JSON.
func sample(account, name string) *caisson.Sandbox {
	digest := "sha256:6e5c6b3f0d8f6a3f7a9f0f5b6c7d8e9fa0b1c2d3e4f5061728394a5b6c7d8e9f"
	rootfs := caisson.Rootfs{Digest: digest, Config: caisson.ImageConfig{Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}}}
	for i := range 4 {
		rootfs.Layers = append(rootfs.Layers, fmt.Sprintf("/var/lib/caisson/layers/%s-%d", digest[7:], i))
	}
	now := time.Now()
	return &caisson.Sandbox{
		ID: caisson.NewID(caisson.SandboxPrefix), Account: account, Name: name, Template: "host", State: caisson.Creating,
		Labels: map[string]string{"team": "blue", "run": "17"},
		Spec: caisson.Spec{
			Image: "docker.io/library/debian:12", Digest: digest, Command: []string{"sleep", "infinity"}, Workdir: "/",
			Env: map[string]string{"HOME": "/root", "LANG": "C.UTF-8"}, User: "root", Resources: caisson.DefaultResources(),
		},
		Rootfs: rootfs, Node: "node-1", Build: "v0.1.0", CreatedAt: now, ChangedAt: now,
	}
}

func benchStore(b *testing.B) *Store {
	b.Helper()
	s, err := Open(b.Context(), testConfig(filepath.Join(b.TempDir(), "caisson.db")))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s
}

func BenchmarkInsert(b *testing.B) {
	s := benchStore(b)
	for b.Loop() {
		if err := s.Sandboxes().Insert(b.Context(), sample("local", "")); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpdate(b *testing.B) {
	s := benchStore(b)
	box := sample("local", "")
	if err := s.Sandboxes().Insert(b.Context(), box); err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++
		_, err := s.Sandboxes().Update(b.Context(), caisson.In("local"), string(box.ID), func(box *caisson.Sandbox) error {
			box.State, box.Reason = caisson.Running, fmt.Sprint(n)
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpdateParallel(b *testing.B) {
	s := benchStore(b)
	b.RunParallel(func(pb *testing.PB) {
		box := sample("local", "")
		if err := s.Sandboxes().Insert(b.Context(), box); err != nil {
			b.Error(err)
			return
		}
		for n := 0; pb.Next(); n++ {
			_, err := s.Sandboxes().Update(b.Context(), caisson.In("local"), string(box.ID), func(box *caisson.Sandbox) error {
				box.Reason = fmt.Sprint(n)
				return nil
			})
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkGet(b *testing.B) {
	s := benchStore(b)
	box := sample("local", "one")
	if err := s.Sandboxes().Insert(b.Context(), box); err != nil {
		b.Fatal(err)
	}
	for name, ref := range map[string]string{"ID": string(box.ID), "Name": "one"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Sandboxes().Get(b.Context(), caisson.In("local"), ref); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppendEvent(b *testing.B) {
	s := benchStore(b)
	for b.Loop() {
		e := caisson.Event{At: time.Now(), Account: "local", Type: "sandbox.running", Subject: "sb-aaaaaaaaaaaaaaaa"}
		if err := s.Events().Append(b.Context(), &e); err != nil {
			b.Fatal(err)
		}
	}
}

func benchRun(b *testing.B, s *Store) caisson.ID {
	b.Helper()
	r := &caisson.Run{ID: caisson.NewID(caisson.RunPrefix), Account: "local", Agent: "shell", State: caisson.RunRunning, CreatedAt: time.Now()}
	if err := s.Runs().Insert(b.Context(), r, 0); err != nil {
		b.Fatal(err)
	}
	return r.ID
}

// BenchmarkAppendRunEvents appends text events as an agent produces them.
func BenchmarkAppendRunEvents(b *testing.B) {
	for _, n := range []int{1, 50} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := benchStore(b)
			id, seq := benchRun(b, s), int64(0)
			events := make([]caisson.RunEvent, n)
			for b.Loop() {
				for i := range events {
					seq++
					events[i] = caisson.RunEvent{Seq: seq, At: time.Now(), Type: caisson.EventTextDelta, Attempt: 1, Delta: "and a few words more, "}
				}
				if err := s.Runs().Append(b.Context(), id, events); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAppendRunEventsParallel appends events of many runs concurrently.
func BenchmarkAppendRunEventsParallel(b *testing.B) {
	s := benchStore(b)
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		id := benchRun(b, s)
		for seq := int64(1); pb.Next(); seq++ {
			e := caisson.RunEvent{Seq: seq, At: time.Now(), Type: caisson.EventTextDelta, Attempt: 1, Delta: "and a few words more, "}
			if err := s.Runs().Append(b.Context(), id, []caisson.RunEvent{e}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkRunEvents(b *testing.B) {
	s := benchStore(b)
	id := benchRun(b, s)
	events := make([]caisson.RunEvent, 1000)
	for i := range events {
		events[i] = caisson.RunEvent{Seq: int64(i) + 1, At: time.Now(), Type: caisson.EventTextDelta, Delta: "and a few words more, "}
	}
	if err := s.Runs().Append(b.Context(), id, events); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if page, err := s.Runs().Events(b.Context(), caisson.In("local"), id, 900, 100); err != nil || len(page) != 100 {
			b.Fatal(len(page), err)
		}
	}
}

// BenchmarkInsertSubRun measures the cost of counting a run in three ancestors that have prompts of 100 kB.
func BenchmarkInsertSubRun(b *testing.B) {
	s := benchStore(b)
	var lineage []caisson.ID
	sub := func() *caisson.Run {
		r := &caisson.Run{ID: caisson.NewID(caisson.RunPrefix), Account: "local", Agent: "shell", Limits: caisson.AgentLimits{Runs: new(int64(1 << 40))}}
		r.Request.Prompt = strings.Repeat("x", 100_000)
		if r.Lineage = lineage; len(lineage) > 0 {
			r.Parent = lineage[len(lineage)-1]
		}
		return r
	}
	for range 3 {
		r := sub()
		if err := s.Runs().Insert(b.Context(), r, 0); err != nil {
			b.Fatal(err)
		}
		lineage = append(lineage, r.ID)
	}
	for b.Loop() {
		if err := s.Runs().Insert(b.Context(), sub(), 0); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "caisson.db")
	s, err := Open(b.Context(), testConfig(path))
	if err != nil {
		b.Fatal(err)
	}
	for range 2000 {
		if err := s.Sandboxes().Insert(b.Context(), sample("local", "")); err != nil {
			b.Fatal(err)
		}
	}
	s.Close()
	for b.Loop() {
		s, err := Open(b.Context(), testConfig(path))
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}
