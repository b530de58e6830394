package sqlite

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// sample is a sandbox of a usual size: about 1.5 kB as JSON.
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
