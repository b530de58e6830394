package repos_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/events"
	"github.com/caisson-dev/caisson/daemon/repos"
	"github.com/caisson-dev/caisson/daemon/sqlite/sqlitetest"
	"github.com/caisson-dev/caisson/internal/gitserver"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/workertest"
	"github.com/caisson-dev/caisson/job/forge"
	"github.com/caisson-dev/caisson/job/relay/front"
	"github.com/caisson-dev/caisson/job/relay/transport"
)

const hang = 60 * time.Second

// world is a core on a real store, with real jobs and a real remote. Its sandboxes are directories of the host's in which
// processes find the relay by another address.
type world struct {
	t        *testing.T
	data     string
	store    caisson.Store
	core     *repos.Core
	api      caisson.Repos
	remote   *gitserver.Server
	bare     string // the remote's repository
	work     string // a work tree of it
	settings repos.Settings
	sweep    time.Duration
	adapt    func(*repos.Config) // unless nil, before a core is made
	secrets

	mu     sync.Mutex
	fronts map[caisson.ID]string
	end    func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, data: t.TempDir(), fronts: map[caisson.ID]string{}, secrets: secrets{}, settings: repos.Settings{FirstRetry: caisson.Duration(20 * time.Millisecond)}}
	w.remote = gitserver.New(t, gitserver.Options{})
	w.bare = w.remote.Create("app.git")
	w.work, _ = gitserver.Seed(t, w.bare, map[string]string{"a.txt": "a\n"})
	w.store = sqlitetest.New(t)
	w.open()
	w.add("app")
	return w
}

// secrets are the credentials of every account, by name.
type secrets map[string]string

func (s secrets) Secret(_ context.Context, _, name string) (caisson.Secret, error) {
	if value, ok := s[name]; ok {
		return caisson.NewSecret(value), nil
	}
	return caisson.Secret{}, caisson.Errorf(caisson.NotFound, "there is no such credential")
}

// open constructs a core, as a daemon does when it starts.
func (w *world) open() {
	w.t.Helper()
	runner := workertest.Runner(w.t)
	cfg := repos.Config{
		Dir: w.data, Store: w.store, Jobs: runner,
		Remote: repos.RemoteConfig{Transport: transport.NewTool(runner), Forge: forge.NewTool(runner), Secrets: w.secrets},
		Events: events.New(w.store.Events(), nil), Exec: w.exec, Settings: w.settings, SweepInterval: w.sweep,
	}
	if w.adapt != nil {
		w.adapt(&cfg)
	}
	core, err := repos.New(cfg)
	w.must(err)
	w.must(core.Reconcile(w.t.Context()))
	w.core, w.api = core, core.Repos()
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		core.Run(ctx)
	}()
	w.end = sync.OnceFunc(func() {
		cancel()
		<-done
		core.Close()
	})
	w.t.Cleanup(w.end)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// wants fails the test unless err is of that kind and its message contains text.
func (w *world) wants(err error, kind caisson.Kind, text string) {
	w.t.Helper()
	if _, ok := errors.AsType[*caisson.Error](err); !ok || caisson.KindOf(err) != kind || !strings.Contains(caisson.MessageOf(err), text) {
		w.t.Errorf("error %v, want %s with %q", err, kind, text)
	}
}

// ctx is a request over the unix socket.
func (w *world) ctx() context.Context {
	return caisson.WithCaller(w.t.Context(), caisson.Caller{Account: "local", Local: true})
}

func (w *world) add(name string) {
	w.t.Helper()
	_, err := w.api.AddRepo(w.ctx(), caisson.Repo{Name: name, URL: w.remote.RepoURL("app.git")})
	w.must(err)
}

// sandbox makes a sandbox of an account, and returns its id and directory.
func (w *world) sandbox(account string) (caisson.ID, string) {
	w.t.Helper()
	id := caisson.NewID(caisson.SandboxPrefix)
	_, err := w.store.Accounts().Ensure(w.t.Context(), account)
	w.must(err)
	w.must(w.store.Sandboxes().Insert(w.t.Context(), &caisson.Sandbox{ID: id, Account: account, State: caisson.Running, CreatedAt: time.Now()}))
	srv := httptest.NewUnstartedServer(nil)
	srv.Config.Handler = front.Handler(func(ctx context.Context, in json.RawMessage) (net.Conn, error) {
		f, _, err := w.core.Stream(caisson.WithGuest(context.WithoutCancel(ctx), caisson.Guest{Sandbox: id, Account: account}), in)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return net.FileConn(f)
	})
	srv.Start()
	w.t.Cleanup(srv.Close)
	w.mu.Lock()
	w.fronts[id] = srv.URL
	w.mu.Unlock()
	return id, filepath.Join(w.t.TempDir(), "work")
}

// process runs a command on the host in the place of one in a sandbox.
type process struct {
	cmd      *exec.Cmd
	in       io.WriteCloser
	out, err io.Reader
	done     chan struct{}
}

// git is the environment in which git finds the relay as a sandbox does.
func (w *world) git(id caisson.ID) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url." + w.fronts[id] + "/.insteadOf", "GIT_CONFIG_VALUE_0=http://git.caisson.internal/",
	}
}

func (w *world) exec(ctx context.Context, sandbox string, req caisson.ExecRequest) (caisson.Process, error) {
	cmd := exec.CommandContext(ctx, req.Command[0], req.Command[1:]...)
	cmd.Env = w.git(caisson.ID(sandbox))
	outR, outW := io.Pipe()
	errR, errW := io.Pipe()
	cmd.Stdout, cmd.Stderr = outW, errW
	var in io.WriteCloser
	if req.Stdin {
		var err error
		if in, err = cmd.StdinPipe(); err != nil {
			return nil, err
		}
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, in: in, out: outR, err: errR, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		cmd.Wait()
		outW.Close()
		errW.Close()
	}()
	return p, nil
}

func (p *process) PID() int                          { return p.cmd.Process.Pid }
func (p *process) Stdin() io.WriteCloser             { return p.in }
func (p *process) Stdout() io.Reader                 { return p.out }
func (p *process) Stderr() io.Reader                 { return p.err }
func (p *process) Resize(uint16, uint16) error       { return nil }
func (p *process) Signal(context.Context, int) error { return p.cmd.Process.Kill() }
func (p *process) Close() error                      { p.cmd.Process.Kill(); return nil }
func (p *process) Wait(context.Context) (caisson.ExitStatus, error) {
	<-p.done
	return caisson.ExitStatus{Code: p.cmd.ProcessState.ExitCode()}, nil
}

// in runs a script in a sandbox's directory and returns its output, and whether it succeeded.
func (w *world) in(id caisson.ID, dir, script string) (string, bool) {
	w.t.Helper()
	cmd := exec.CommandContext(w.t.Context(), "sh", "-ec", script)
	cmd.Dir, cmd.Env = dir, w.git(id)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

// does is in for scripts that must succeed.
func (w *world) does(id caisson.ID, dir, script string) {
	w.t.Helper()
	if out, ok := w.in(id, dir, script); !ok {
		w.t.Fatalf("%s: %s", script, out)
	}
}

// grant grants a new sandbox the repository for a run.
func (w *world) grant(req caisson.RepoRequest, session caisson.ID) (id caisson.ID, dir string, g *caisson.RepoGrant) {
	w.t.Helper()
	id, dir = w.sandbox("local")
	req.Name = "app"
	g, err := w.core.Grant(w.t.Context(), caisson.RepoAccess{
		Account: "local", Sandbox: id, Run: caisson.NewID(caisson.RunPrefix), Session: session, Repo: req, Dir: dir,
	})
	w.must(err)
	return id, dir, g
}

// deliver makes a delivery and waits until its state is final or held.
func (w *world) deliver(h caisson.DeliveryRequest) *caisson.Delivery {
	w.t.Helper()
	h.Repo.Name = "app"
	d, err := w.core.Deliver(w.t.Context(), h)
	w.must(err)
	if d == nil {
		w.t.Fatal("there is nothing to deliver")
	}
	return w.ended(d.ID)
}

func (w *world) ended(id caisson.ID) *caisson.Delivery {
	w.t.Helper()
	d, err := w.core.Await(w.t.Context(), id, hang)
	w.must(err)
	if !d.State.Ended() {
		w.t.Fatalf("the delivery is %+v", d)
	}
	return d
}

// at is the commit of a branch of the remote, "" if there is none.
func (w *world) at(branch string) string {
	out, err := gitserver.TryGit(w.t, w.bare, "rev-parse", "-q", "--verify", "refs/heads/"+branch)
	if err != nil {
		return ""
	}
	return out
}

func (w *world) waitFor(cond func() bool) {
	w.t.Helper()
	poll.Until(w.t, hang, cond)
}

func (w *world) exists(parts ...string) bool {
	_, err := os.Lstat(filepath.Join(append([]string{w.data, "relay", "local", "app"}, parts...)...))
	return err == nil
}
