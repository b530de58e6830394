package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi"
	"github.com/caisson-dev/caisson/httpapi/apitest"
	"github.com/caisson-dev/caisson/internal/coretest"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testbin"
	"github.com/caisson-dev/caisson/internal/testneed"
)

func TestMain(m *testing.M) {
	dispatchRole() // gVisor and the other helpers re-execute this binary; they must not run its tests
	testscript.Main(m, map[string]func(){
		// Scripts run the command line as it is; the daemon that it starts serves the cores of package coretest.
		"caisson": func() {
			if len(os.Args) > 4 && os.Args[1] == "serve" && os.Args[2] == "--background" {
				if err := serveWorld(os.Args[4]); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				return
			}
			main()
		},
	})
}

// serveWorld is a daemon for scripts. It writes its process id to the file pid, its URL to the file url, and a line to the file
// starts; a file refuse makes it fail with the text in it, a file mute makes it end without a word. If there is a file old, it is
// version 0.1, and does not know the request of which the file has the path. The parent of dir has workerLink.
func serveWorld(dir string) (err error) {
	if b, err := os.ReadFile(filepath.Join(dir, "refuse")); err == nil {
		return signalReady(errors.New(strings.TrimSpace(string(b))))
	}
	if _, err := os.Stat(filepath.Join(dir, "mute")); err == nil {
		return errors.New("said nothing")
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	world, err := coretest.Open(filepath.Join(dir, "../"+workerLink), log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, world.Close()) }()
	cfg := world.Config(log)
	cfg.Runs = odd{cfg.Runs, filepath.Join(dir, "watched")}
	api, err := httpapi.New(cfg)
	if err != nil {
		return err
	}
	starts, err := os.OpenFile(filepath.Join(dir, "starts"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	fmt.Fprintln(starts, "started", os.Environ())
	starts.Close()
	local, err := net.Listen("unix", filepath.Join(dir, "caisson.sock"))
	if err != nil {
		return err
	}
	remote, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "url"), []byte("http://"+remote.Addr().String()), 0o600),
		os.WriteFile(filepath.Join(dir, "pid"), []byte(strconv.Itoa(os.Getpid())), 0o600)); err != nil {
		return err
	}
	handler := api.Local()
	if path, err := os.ReadFile(filepath.Join(dir, "old")); err == nil {
		handler = httpapi.Announce(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == strings.TrimSpace(string(path)) {
				r.URL.Path += "/unknown/to/all"
			}
			api.Local().ServeHTTP(w, r)
		}), "0.1", func() []string { return nil })
	}
	l, r := httpapi.Server(handler, log), httpapi.Server(api.Remote(), log)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go l.Serve(local)
	go r.Serve(remote)
	if err := signalReady(nil); err != nil {
		return err
	}
	<-ctx.Done()
	return errors.Join(api.Close(), l.Close(), r.Close())
}

// workerLink is the name of a symlink to caisson-worker in the directory of a script.
const workerLink = ".worker"

// quickRace keeps the race detector from sleeping a second at the end of every command.
const quickRace = "atexit_sleep_ms=1"

func params(t *testing.T, dir string) testscript.Params {
	return testscript.Params{
		Dir: dir,
		Setup: func(env *testscript.Env) error {
			env.Vars = append(env.Vars, home(t, env.WorkDir)...)
			env.Defer(func() { endDaemon(t, filepath.Join(env.WorkDir, "data")) })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"capture": capture, "code": code, "try": try, "awaitrun": awaitRun(t), "awaitstdout": awaitStdout(t),
			"awaitwatch": awaitWatch(t)},
	}
}

// home prepares dir for a command line whose daemon has its data in dir/data, and returns the environment.
func home(t *testing.T, dir string) []string {
	t.Helper()
	config := filepath.Join(dir, "config.yaml")
	if err := errors.Join(
		os.WriteFile(config, []byte("logLevel: info\n"), 0o600),
		os.Symlink(testbin.Path(t, "caisson-worker"), filepath.Join(dir, workerLink)),
	); err != nil {
		t.Fatal(err)
	}
	return []string{"CAISSON_DATA=" + filepath.Join(dir, "data"), "CAISSON_CONFIG=" + config, "GORACE=" + quickRace}
}

// endDaemon ends the daemon of a script and waits until it is gone.
func endDaemon(t *testing.T, data string) {
	b, err := os.ReadFile(filepath.Join(data, "pid"))
	if err != nil {
		return // none was started
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		t.Error(err)
		return
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return
	}
	poll.Until(t, 2*time.Minute, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ") // init may be slow to reap it
	})
}

// capture puts the content of a file, less a last newline, into a variable: capture NAME FILE.
func capture(ts *testscript.TestScript, _ bool, args []string) {
	ts.Setenv(args[0], strings.TrimSuffix(ts.ReadFile(args[1]), "\n"))
}

// code runs the command line and checks its exit code: code N ARGS….
func code(ts *testscript.TestScript, _ bool, args []string) {
	got := 0
	if err := ts.Exec("caisson", args[1:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("exit code %d, want %s", got, args[0])
	}
}

// try runs the command line, whatever its exit code.
func try(ts *testscript.TestScript, _ bool, args []string) {
	if err := ts.Exec("caisson", args...); err != nil {
		ts.Logf("%v", err)
	}
}

// TestPlain runs the scripts that need no daemon.
func TestPlain(t *testing.T) { testscript.Run(t, params(t, "testdata/plain")) }

// TestDaemon runs the scripts in which commands start a daemon.
func TestDaemon(t *testing.T) {
	testneed.Root(t)
	testscript.Run(t, params(t, "testdata/daemon"))
}

// odd are runs that create file when a run is watched. StartRun fails if the prompt is "refuse KIND TEXT". In the runs and events
// that it returns, the text \u with four digits is replaced by that character, control characters included.
type odd struct {
	caisson.Runs
	file string
}

// hostile replaces the text \u with four digits in v by the character.
func hostile[T any](v T, err error) (T, error) {
	if err != nil {
		return v, err
	}
	b, err := json.Marshal(v)
	if err != nil {
		return v, err
	}
	var out T
	return out, json.Unmarshal(bytes.ReplaceAll(b, []byte(`\\u`), []byte(`\u`)), &out)
}

func (o odd) GetRun(ctx context.Context, id caisson.ID) (*caisson.Run, error) {
	return hostile(o.Runs.GetRun(ctx, id))
}

func (o odd) ListRuns(ctx context.Context, f caisson.RunFilter) ([]*caisson.Run, bool, error) {
	list, more, err := o.Runs.ListRuns(ctx, f)
	list, err = hostile(list, err)
	return list, more, err
}

func (o odd) StartRun(ctx context.Context, req caisson.RunRequest) (*caisson.Run, error) {
	if rest, refused := strings.CutPrefix(req.Prompt, "refuse "); refused {
		kind, text, _ := strings.Cut(rest, " ")
		return nil, caisson.Errorf(caisson.Kind(kind), "%s", text)
	}
	return o.Runs.StartRun(ctx, req)
}

func (o odd) WatchRun(ctx context.Context, id caisson.ID, after int64) (<-chan caisson.RunEvent, error) {
	if err := os.WriteFile(o.file, []byte(id), 0o600); err != nil {
		return nil, err
	}
	events, err := o.Runs.WatchRun(ctx, id, after)
	if err != nil {
		return nil, err
	}
	out := make(chan caisson.RunEvent)
	go func() {
		defer close(out)
		for e := range events {
			e, _ = hostile(e, nil) // v marshals: it came from the cores
			select {
			case out <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

type command = func(ts *testscript.TestScript, neg bool, args []string)

// awaitRun waits until exactly one run is under way and puts its id into a variable: awaitrun NAME.
func awaitRun(t *testing.T) command {
	return func(ts *testscript.TestScript, _ bool, args []string) {
		poll.Until(t, apitest.Timeout, func() bool {
			ts.Check(ts.Exec("caisson", "runs", "ls", "-q", "--state", "running"))
			id := strings.TrimSpace(ts.ReadFile("stdout"))
			ts.Setenv(args[0], id)
			return id != "" && !strings.Contains(id, "\n")
		})
	}
}

// awaitStdout runs a command until its standard output contains a word: awaitstdout WORD COMMAND....
func awaitStdout(t *testing.T) command {
	return func(ts *testscript.TestScript, _ bool, args []string) {
		poll.Until(t, apitest.Timeout, func() bool {
			ts.Check(ts.Exec(args[1], args[2:]...))
			return slices.Contains(strings.Fields(ts.ReadFile("stdout")), args[0])
		})
	}
}

// awaitWatch waits until the daemon streams the events of a run to somebody.
func awaitWatch(t *testing.T) command {
	return func(ts *testscript.TestScript, _ bool, _ []string) {
		poll.Until(t, apitest.Timeout, func() bool {
			id, err := os.ReadFile(filepath.Join(ts.Getenv("CAISSON_DATA"), "watched"))
			return err == nil && len(id) > 0
		})
	}
}
