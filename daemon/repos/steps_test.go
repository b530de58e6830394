package repos_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/repos"
	"github.com/caisson-dev/caisson/internal/gitserver"
	"github.com/caisson-dev/caisson/internal/steptest"
	"github.com/caisson-dev/caisson/job/forge"
	"github.com/caisson-dev/caisson/job/worker"
)

// steps are the calls that a core makes to its store, git, the forge and sandboxes.
type steps struct {
	steptest.Injector
	record func(ops []string) // called with all steps if none was disturbed; may be nil
}

// newSteps returns steps of which only those lose their answer that may be done and fail: a call of the store does what it says,
// or nothing.
func newSteps() *steps {
	s := &steps{}
	s.Skips = func(op string, e steptest.Effect) bool {
		return e == steptest.Loses && (strings.Contains(op, " ") || op == "refs" || op == "prepare")
	}
	return s
}

// on disturbs a step from now on, and returns the context for the operation.
func (s *steps) on(ctx context.Context, at int, what steptest.Effect) context.Context {
	s.Arm(at, what)
	return s.Context(ctx)
}

// off ends that, and returns the name of the disturbed step, "" if there were fewer steps.
func (s *steps) off() string {
	hit, ops := s.Disarm()
	if hit == "" && s.record != nil {
		s.record(ops)
	}
	return hit
}

func step[T any](s *steps, op string, do func() (T, error)) (T, error) {
	return steptest.Step(&s.Injector, op, do)
}

func step0(s *steps, op string, do func() error) error { return s.Do(op, do) }

type stepStore struct {
	caisson.Store
	s *steps
}

func (s stepStore) Repos() caisson.Table[caisson.Repo] {
	return stepTable[caisson.Repo]{s.Store.Repos(), s.s, "repo"}
}
func (s stepStore) Sandboxes() caisson.Table[caisson.Sandbox] {
	return stepTable[caisson.Sandbox]{s.Store.Sandboxes(), s.s, "sandbox"}
}
func (s stepStore) Deliveries() caisson.DeliveryStore {
	return stepDeliveries{s.Store.Deliveries(), s.s}
}

type stepTable[T any] struct {
	caisson.Table[T]
	s    *steps
	name string
}

func (t stepTable[T]) Insert(ctx context.Context, v *T) error {
	return step0(t.s, "insert "+t.name, func() error { return t.Table.Insert(ctx, v) })
}
func (t stepTable[T]) Get(ctx context.Context, in caisson.Scope, ref string) (*T, error) {
	return step(t.s, "get "+t.name, func() (*T, error) { return t.Table.Get(ctx, in, ref) })
}
func (t stepTable[T]) Update(ctx context.Context, in caisson.Scope, ref string, change func(*T) error) (*T, error) {
	return step(t.s, "update "+t.name, func() (*T, error) { return t.Table.Update(ctx, in, ref, change) })
}
func (t stepTable[T]) Delete(ctx context.Context, in caisson.Scope, ref string) error {
	return step0(t.s, "delete "+t.name, func() error { return t.Table.Delete(ctx, in, ref) })
}

type stepDeliveries struct {
	caisson.DeliveryStore
	s *steps
}

func (d stepDeliveries) Insert(ctx context.Context, v *caisson.Delivery) error {
	return step0(d.s, "insert delivery", func() error { return d.DeliveryStore.Insert(ctx, v) })
}
func (d stepDeliveries) List(ctx context.Context, in caisson.Scope, f caisson.DeliveryFilter) (list []*caisson.Delivery, more bool, err error) {
	list, err = step(d.s, "list deliveries", func() ([]*caisson.Delivery, error) {
		list, m, err := d.DeliveryStore.List(ctx, in, f)
		more = m
		return list, err
	})
	return list, more, err
}
func (d stepDeliveries) Update(ctx context.Context, in caisson.Scope, id caisson.ID, change func(*caisson.Delivery) error) (*caisson.Delivery, error) {
	return step(d.s, "update delivery", func() (*caisson.Delivery, error) { return d.DeliveryStore.Update(ctx, in, id, change) })
}

// counted are the jobs that are steps.
var counted = []string{"relay.init", "relay.fetch", "relay.refs", "relay.view", "relay.store", "relay.prepare", "relay.push"}

// stepJobs is a starter of jobs whose starts are steps.
type stepJobs struct {
	worker.Starter
	s *steps
}

func (j stepJobs) Run(ctx context.Context, req worker.Request, reply any) error {
	if !slices.Contains(counted, req.Job) {
		return j.Starter.Run(ctx, req, reply)
	}
	return step0(j.s, strings.TrimPrefix(req.Job, "relay."), func() error { return j.Starter.Run(ctx, req, reply) })
}

// pulls is a forge that counts the pull requests of each branch.
type pulls struct {
	s    *steps
	mu   sync.Mutex
	made map[string]int // by branch; guarded by mu
}

func (p *pulls) Token(context.Context, forge.App, forge.Server) (caisson.Secret, time.Time, error) {
	return caisson.Secret{}, time.Time{}, caisson.Errorf(caisson.Internal, "nobody asks for this")
}

func (p *pulls) Pull(_ context.Context, _ forge.Server, req forge.PullRequest) (*forge.Pull, error) {
	return step(p.s, "pull", func() (*forge.Pull, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.made[req.Head]++
		return &forge.Pull{Number: int64(len(p.made)), URL: "https://forge.example/pull", State: "open"}, nil
	})
}

// stepped is a world whose steps can be disturbed.
func stepped(t *testing.T) (*world, *steps) {
	t.Helper()
	w, s := newWorld(t), newSteps()
	w.end()
	w.secrets["token"] = "t0ken"
	w.adapt = func(c *repos.Config) {
		exec := c.Exec
		c.Exec = func(ctx context.Context, sandbox string, req caisson.ExecRequest) (caisson.Process, error) {
			return step(s, "exec", func() (caisson.Process, error) { return exec(ctx, sandbox, req) })
		}
		c.Store, c.Jobs, c.Remote.Forge = stepStore{c.Store, s}, stepJobs{c.Jobs, s}, &pulls{s: s, made: map[string]int{}}
	}
	w.open()
	w.bare = w.remote.Create("acme/app.git")
	w.work, _ = gitserver.Seed(t, w.bare, map[string]string{"a.txt": "a\n"})
	w.again(func(r *caisson.Repo) {
		r.URL, r.Forge, r.Credential = w.remote.RepoURL("acme/app.git"), caisson.ForgeGitea, "token"
	})
	return w, s
}

// everywhere calls try for a sample of steps, see [steptest.Every], and all that can happen at them, until there is no such step.
// It returns the step's name, "" if it was not reached.
func everywhere(t *testing.T, s *steps, try func(t *testing.T, at int, what steptest.Effect) (op string)) {
	var record steptest.Record
	s.record = record.Recorder("operation")
	for _, what := range []steptest.Effect{steptest.Fails, steptest.Loses, steptest.Cancelled} {
		t.Run(strings.ReplaceAll(string(what), " ", "-"), func(t *testing.T) {
			sample := steptest.Every(4, t.Name())
			at := sample.From(1)
			for op := "?"; op != "" && !t.Failed(); at = sample.From(at + 1) {
				op = try(t, at, what)
				t.Logf("step %d, %s, %s", at, op, what)
			}
		})
	}
	record.Check(t)
}

// idle waits until no stream, attempt or call of Await is under way.
func (w *world) idle() {
	w.t.Helper()
	w.waitFor(func() bool { return w.core.Watched() == 0 && w.core.Busy() == 0 })
}

// TestAddAnywhere: if a step of adding, fetching or removing a repository is disturbed, the next call succeeds.
func TestAddAnywhere(t *testing.T) {
	t.Parallel()
	w, s := stepped(t)
	r := caisson.Repo{Name: "other", URL: w.remote.RepoURL("acme/app.git")}
	everywhere(t, s, func(t *testing.T, at int, what steptest.Effect) (op string) {
		w.t = t
		try := func(do func(ctx context.Context) error) (failed bool) {
			err := do(s.on(w.ctx(), at, what))
			if step := s.off(); step != "" {
				op += step + " "
			}
			return err != nil
		}
		add := func(ctx context.Context) error { return second(w.api.AddRepo(ctx, r)) }
		if try(add) {
			_, err := w.api.GetRepo(w.ctx(), "other")
			w.wants(err, caisson.NotFound, "")
			if _, err := os.Lstat(w.data + "/relay/local/other"); !os.IsNotExist(err) {
				t.Errorf("step %d: a directory is left: %v", at, err)
			}
			w.must(add(w.ctx()))
		}
		gitserver.Commit(t, w.work, fmt.Sprint(what, at), map[string]string{"a.txt": fmt.Sprintln(what, at)})
		gitserver.Git(t, w.work, "push", "-q", "origin", "main")
		fetch := func(ctx context.Context) error { return second(w.api.FetchRepo(ctx, "other")) }
		if try(fetch) {
			w.must(fetch(w.ctx()))
		}
		list, err := w.api.ListBranches(w.ctx(), "other")
		w.must(err)
		if len(list) != 1 || list[0].Commit != gitserver.Git(t, w.work, "rev-parse", "HEAD") {
			t.Errorf("step %d: the branches are %+v", at, list)
		}
		remove := func(ctx context.Context) error { return w.api.RemoveRepo(ctx, "other") }
		if try(remove) {
			if err := remove(w.ctx()); err != nil {
				w.wants(err, caisson.NotFound, "")
			}
		}
		return op
	})
}

func second[T any](_ T, err error) error { return err }

// TestGrantAnywhere: if a step of a grant or of its removal is disturbed, the next call succeeds, and nothing is left.
func TestGrantAnywhere(t *testing.T) {
	t.Parallel()
	w, s := stepped(t)
	everywhere(t, s, func(t *testing.T, at int, what steptest.Effect) (op string) {
		w.t = t
		id, dir := w.sandbox("local")
		grant := func(ctx context.Context) error {
			return second(w.core.Grant(ctx, caisson.RepoAccess{Account: "local", Sandbox: id, Repo: caisson.RepoRequest{Name: "app"}, Dir: dir}))
		}
		err := grant(s.on(w.ctx(), at, what))
		op = s.off()
		if err != nil {
			if w.exists("stores", string(id)) || w.exists("stores", string(id)+".json") {
				t.Errorf("step %d, %s: something is left of a grant", at, op)
			}
			w.must(grant(w.ctx()))
		}
		w.does(id, dir, "git fetch -q && git status && test -f a.txt && echo b > b.txt && git add . && git commit -qm b && git push -q")
		w.must(w.store.Sandboxes().Delete(w.ctx(), caisson.AllAccounts(), string(id)))
		err = w.core.SandboxRemoved(s.on(w.ctx(), at, what), id)
		op += s.off()
		if err != nil {
			w.must(w.core.SandboxRemoved(w.ctx(), id))
		}
		if w.exists("stores", string(id)) || w.exists("stores", string(id)+".json") {
			t.Errorf("step %d, %s: the store of a sandbox that has gone is left", at, op)
		}
		w.idle()
		return op
	})
}

// TestDeliverAnywhere: whatever happens while what was pushed becomes a delivery and is sent, there is one delivery of it in the
// end, the remote has its branch, and nothing is under way any more.
func TestDeliverAnywhere(t *testing.T) {
	t.Parallel()
	w, s := stepped(t)
	id, dir, g := w.grant(caisson.RepoRequest{}, "")
	made := 0
	everywhere(t, s, func(t *testing.T, at int, what steptest.Effect) (op string) {
		w.t = t
		made++
		w.does(id, dir, fmt.Sprintf("echo %d > b.txt; git add .; git commit -qm b; echo %d > c.txt", made, made))
		h := caisson.DeliveryRequest{Sandbox: id, Dir: dir, Subject: "c", Repo: caisson.RepoRequest{Name: "app", Pull: true}}
		d, err := w.core.Deliver(s.on(w.ctx(), at, what), h)
		if err == nil && d != nil {
			_, err = w.core.Await(w.ctx(), d.ID, hang)
		}
		if err == nil {
			w.idle()
		}
		op = s.off()
		if err != nil {
			if d, err = w.core.Deliver(w.ctx(), h); err != nil || d == nil {
				t.Fatalf("step %d, %s: %+v, %v", at, op, d, err)
			}
		}
		if d = w.ended(d.ID); d.State != caisson.DeliveryDelivered || w.at(g.Branch) != d.Commit || d.URL == "" {
			t.Errorf("step %d, %s: the delivery is %+v", at, op, d)
		}
		all, _, err := w.store.Deliveries().List(w.ctx(), caisson.AllAccounts(), caisson.DeliveryFilter{Repo: "app", Limit: 1000})
		w.must(err)
		if len(all) != made {
			t.Fatalf("step %d, %s: there are %d deliveries of %d", at, op, len(all), made)
		}
		w.idle()
		return op
	})
}

// TestGrantIsNotKept: a grant that could not be stored leaves nothing that makes the next one fail.
func TestGrantIsNotKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id, dir := w.sandbox("local")
	grant := func() error {
		return second(w.core.Grant(t.Context(), caisson.RepoAccess{Account: "local", Sandbox: id, Repo: caisson.RepoRequest{Name: "app"}, Dir: dir}))
	}
	file := w.data + "/relay/local/app/stores/" + string(id) + ".json"
	w.must(os.Mkdir(file, 0o700)) // as good as a full disk
	if err := grant(); err == nil {
		t.Fatal("there is a grant that is not written down")
	}
	w.must(os.Remove(file))
	w.must(grant())
	w.does(id, dir, "test -f a.txt")
}

// TestGrantHalfMade: no grant without a clone is left by a daemon that dies while it clones.
func TestGrantHalfMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.end()
	cloning, over := make(chan struct{}), make(chan struct{})
	w.adapt = func(c *repos.Config) {
		c.Exec = func(context.Context, string, caisson.ExecRequest) (caisson.Process, error) {
			close(cloning)
			<-over
			return nil, caisson.Errorf(caisson.Unavailable, "the daemon has died")
		}
	}
	w.open()
	id, dir := w.sandbox("local")
	grant := func() error {
		return second(w.core.Grant(t.Context(), caisson.RepoAccess{Account: "local", Sandbox: id, Repo: caisson.RepoRequest{Name: "app"}, Dir: dir}))
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		grant()
	}()
	defer func() {
		close(over)
		<-ended
	}()
	<-cloning
	w.wants(grant(), caisson.Conflict, "is being cloned")
	w.adapt = nil
	w.open() // the next one
	w.must(grant())
	w.does(id, dir, "test -f a.txt")
}
