package sqlite_test

import (
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// objectKind describes the objects of a table for the tests.
type objectKind[T any] struct {
	table     func(caisson.Store) caisson.Table[T]
	make      func(account, name string) *T // Returns a complete object: every kind of field has a value.
	ref       func(*T) string               // Returns a reference to the object other than its name.
	account   func(*T) *string
	name      func(*T) *string
	key       func(*T) *string // Cannot be changed.
	labels    func(*T) *map[string]string
	textField func(*T) *string // A text field that no query uses.
	pageToken func(*T) caisson.ID
	named     bool // Objects are identified by account and name and listed by name.
}

func spec() caisson.Spec {
	return caisson.Spec{
		Image: "docker.io/library/debian:12", Digest: "sha256:00", Command: []string{"sh", "-c", "echo '<&>' \u2028"},
		Env: map[string]string{"A": "1\n2", "ü": "☃"}, Workdir: "/", User: "0", Resources: caisson.DefaultResources(),
		Mounts: []caisson.Mount{{Source: "/src", Target: "/dst", Writable: true}}, TTL: caisson.Duration(time.Hour),
	}
}

func rootfs() caisson.Rootfs {
	return caisson.Rootfs{
		Digest: "sha256:00", Layers: []string{"/layers/2", "/layers/1"}, Binds: []caisson.Bind{{Source: "/usr", Target: "/usr"}},
		Config: caisson.ImageConfig{Entrypoint: []string{"init"}, Env: map[string]string{"PATH": "/bin"}},
	}
}

func sandboxKind() objectKind[caisson.Sandbox] {
	return objectKind[caisson.Sandbox]{
		table: caisson.Store.Sandboxes,
		make: func(account, name string) *caisson.Sandbox {
			pause := noon().Add(time.Hour)
			return &caisson.Sandbox{
				ID: caisson.NewID(caisson.SandboxPrefix), Account: account, Name: name, Template: "host", State: caisson.Running,
				Labels: map[string]string{"made": "here"}, Spec: spec(), Rootfs: rootfs(), Exit: &caisson.ExitStatus{Code: 137, Signal: 9},
				Parent: caisson.NewID(caisson.SnapshotPrefix), Node: "n", Build: "b", Pooled: true,
				CreatedAt: noon(), ChangedAt: noon(), PauseAt: &pause,
			}
		},
		ref:       func(s *caisson.Sandbox) string { return string(s.ID) },
		account:   func(s *caisson.Sandbox) *string { return &s.Account },
		name:      func(s *caisson.Sandbox) *string { return &s.Name },
		key:       func(s *caisson.Sandbox) *string { return (*string)(&s.ID) },
		labels:    func(s *caisson.Sandbox) *map[string]string { return &s.Labels },
		textField: func(s *caisson.Sandbox) *string { return &s.Reason },
		pageToken: func(s *caisson.Sandbox) caisson.ID { return s.ID },
	}
}

func snapshotKind() objectKind[caisson.Snapshot] {
	return objectKind[caisson.Snapshot]{
		table: caisson.Store.Snapshots,
		make: func(account, name string) *caisson.Snapshot {
			return &caisson.Snapshot{
				ID: caisson.NewID(caisson.SnapshotPrefix), Account: account, Name: name, Sandbox: caisson.NewID(caisson.SandboxPrefix),
				Template: "host", Memory: true, Size: 1 << 40, Spec: spec(), Labels: map[string]string{"made": "here"}, Rootfs: rootfs(),
				Depends: caisson.Dependencies{Build: "b", CPU: "c", Rootfs: "r", Platform: "systrap"}, CreatedAt: noon(),
			}
		},
		ref:       func(s *caisson.Snapshot) string { return string(s.ID) },
		account:   func(s *caisson.Snapshot) *string { return &s.Account },
		name:      func(s *caisson.Snapshot) *string { return &s.Name },
		key:       func(s *caisson.Snapshot) *string { return (*string)(&s.ID) },
		labels:    func(s *caisson.Snapshot) *map[string]string { return &s.Labels },
		textField: func(s *caisson.Snapshot) *string { return &s.Template },
		pageToken: func(s *caisson.Snapshot) caisson.ID { return s.ID },
	}
}

func templateKind() objectKind[caisson.Template] {
	return objectKind[caisson.Template]{
		table: caisson.Store.Templates,
		make: func(account, name string) *caisson.Template {
			return &caisson.Template{
				Name: name, Account: account, Image: "host", Env: map[string]string{"A": "1"}, Resources: caisson.DefaultResources(),
				Setup: []caisson.SetupStep{{Run: []string{"make"}, Timeout: caisson.Duration(time.Minute)}}, Pool: 3,
				Labels: map[string]string{"made": "here"}, Built: &caisson.Built{Key: "k", Rootfs: rootfs(), At: noon()}, CreatedAt: noon(),
			}
		},
		ref:       func(t *caisson.Template) string { return t.Name },
		account:   func(t *caisson.Template) *string { return &t.Account },
		name:      func(t *caisson.Template) *string { return &t.Name },
		key:       func(t *caisson.Template) *string { return &t.Name },
		labels:    func(t *caisson.Template) *map[string]string { return &t.Labels },
		textField: func(t *caisson.Template) *string { return &t.Description },
		pageToken: func(t *caisson.Template) caisson.ID { return caisson.ID(t.Name) },
		named:     true,
	}
}

func imageKind() objectKind[caisson.Image] {
	return objectKind[caisson.Image]{
		table: caisson.Store.Images,
		make: func(account, name string) *caisson.Image {
			return &caisson.Image{
				Reference: name, Digest: "sha256:00", Account: account, Size: 12345, Layers: []string{"sha256:02", "sha256:01"},
				Rootfs: rootfs(), CreatedAt: noon(), UsedAt: noon(),
			}
		},
		ref:       func(i *caisson.Image) string { return i.Reference },
		account:   func(i *caisson.Image) *string { return &i.Account },
		name:      func(i *caisson.Image) *string { return &i.Reference },
		key:       func(i *caisson.Image) *string { return &i.Reference },
		textField: func(i *caisson.Image) *string { return &i.Digest },
		pageToken: func(i *caisson.Image) caisson.ID { return caisson.ID(i.Reference) },
		named:     true,
	}
}

func agentKind() objectKind[caisson.Agent] {
	return objectKind[caisson.Agent]{
		table: caisson.Store.Agents,
		make: func(account, name string) *caisson.Agent {
			return &caisson.Agent{
				ID: name, Account: account, Name: "A", Image: "host", Setup: []caisson.SetupStep{{Run: []string{"make"}}}, Env: map[string]string{"A": "1"},
				Driver: caisson.DriverExec, Command: []string{"sh", "-c", "{prompt}"}, Events: map[string]string{"text": "a.b"},
				Files: []caisson.SeedFile{{Path: "/a", Mode: 0o600, Data: "<&>"}}, Models: []string{"large"}, Tools: caisson.ToolRule{Deny: []string{"web"}},
				Personas: []caisson.Persona{{ID: "p", Deny: []string{"x"}}}, Limits: caisson.DefaultAgentLimits(), Warm: &caisson.Warm{Randomness: "kernel"},
				Status:    caisson.AgentStatus{Built: true, Snapshot: caisson.NewID(caisson.SnapshotPrefix), WarmedAt: noon(), Size: 1 << 33},
				CreatedAt: noon(),
			}
		},
		ref:       func(a *caisson.Agent) string { return a.ID },
		account:   func(a *caisson.Agent) *string { return &a.Account },
		name:      func(a *caisson.Agent) *string { return &a.ID },
		key:       func(a *caisson.Agent) *string { return &a.ID },
		textField: func(a *caisson.Agent) *string { return &a.Description },
		pageToken: func(a *caisson.Agent) caisson.ID { return caisson.ID(a.ID) },
		named:     true,
	}
}

func volumeKind() objectKind[caisson.Volume] {
	return objectKind[caisson.Volume]{
		table: caisson.Store.Volumes,
		make: func(account, name string) *caisson.Volume {
			return &caisson.Volume{
				ID: caisson.NewID(caisson.VolumePrefix), Account: account, Name: name, Labels: map[string]string{"made": "here"},
				Sandbox: caisson.NewID(caisson.SandboxPrefix), Bytes: 1 << 40, Files: 1 << 33, CreatedAt: noon(), CountedAt: noon(), UsedAt: noon(),
			}
		},
		ref:       func(v *caisson.Volume) string { return string(v.ID) },
		account:   func(v *caisson.Volume) *string { return &v.Account },
		name:      func(v *caisson.Volume) *string { return &v.Name },
		key:       func(v *caisson.Volume) *string { return (*string)(&v.ID) },
		labels:    func(v *caisson.Volume) *map[string]string { return &v.Labels },
		textField: func(v *caisson.Volume) *string { return (*string)(&v.Sandbox) },
		pageToken: func(v *caisson.Volume) caisson.ID { return v.ID },
	}
}

func routeKind() objectKind[caisson.Route] {
	return objectKind[caisson.Route]{
		table: caisson.Store.Routes,
		make: func(account, name string) *caisson.Route {
			return &caisson.Route{
				ID: caisson.NewID(caisson.RoutePrefix), Account: account, Name: name, CreatedAt: noon(), UpdatedAt: noon(),
				Spec: caisson.RouteSpec{
					Host: "a.example", Path: "/b", Sandbox: string(caisson.NewID(caisson.SandboxPrefix)), Port: 65535, Methods: []string{"GET"},
					Auth: caisson.RouteAuth{Kind: caisson.RouteAuthBearer, Hashes: []string{"00"}}, Resume: true, Timeout: caisson.Duration(time.Second),
					CORS:   &caisson.RouteCORS{Origins: []string{"https://c.example"}},
					Limits: caisson.RouteLimits{Client: caisson.RouteRate{PerSecond: 0.5, Burst: 3}}, Headers: &caisson.RouteHeaders{Strip: []string{"X"}},
				},
			}
		},
		ref:       func(r *caisson.Route) string { return string(r.ID) },
		account:   func(r *caisson.Route) *string { return &r.Account },
		name:      func(r *caisson.Route) *string { return &r.Name },
		key:       func(r *caisson.Route) *string { return (*string)(&r.ID) },
		textField: func(r *caisson.Route) *string { return &r.Spec.Host },
		pageToken: func(r *caisson.Route) caisson.ID { return r.ID },
	}
}

func repoKind() objectKind[caisson.Repo] {
	return objectKind[caisson.Repo]{
		table: caisson.Store.Repos,
		make: func(account, name string) *caisson.Repo {
			return &caisson.Repo{
				Name: name, Account: account, URL: "ssh://git@host/ü.git", Forge: caisson.ForgeGitea, API: "https://host/api", Credential: "TOKEN",
				HostKeys: []string{"host ssh-ed25519 AAAA <&>"}, Protected: []string{"release/*"}, Allow: []string{".github/workflows/*"},
				AllowSecrets: []string{"testdata/**"}, PullBody: "{{.Answer}}\n<&>", Authors: caisson.AuthorSet, AuthorName: "Ü", AuthorEmail: "u@host", SigningKey: "KEY", Head: "main", CreatedAt: noon(), FetchedAt: noon(),
			}
		},
		ref:       func(r *caisson.Repo) string { return r.Name },
		account:   func(r *caisson.Repo) *string { return &r.Account },
		name:      func(r *caisson.Repo) *string { return &r.Name },
		key:       func(r *caisson.Repo) *string { return &r.Name },
		textField: func(r *caisson.Repo) *string { return &r.Head },
		pageToken: func(r *caisson.Repo) caisson.ID { return caisson.ID(r.Name) },
		named:     true,
	}
}

// insert inserts new objects of one account, one per name, in that order.
func (k objectKind[T]) insert(t *testing.T, s caisson.Store, account string, names ...string) []*T {
	t.Helper()
	var all []*T
	for _, name := range names {
		obj := k.make(account, name)
		must(t, k.table(s).Insert(t.Context(), obj))
		all = append(all, obj)
	}
	return all
}

// names returns the names of objects.
func (k objectKind[T]) names(objs []*T) []string {
	names := []string{}
	for _, obj := range objs {
		names = append(names, *k.name(obj))
	}
	return names
}
