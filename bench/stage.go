package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/guest/coder/sample"
	"github.com/caisson-dev/caisson/internal/osthread"
	"github.com/caisson-dev/caisson/wire/llm/scripted"
)

// An agentSetup is the environment in which agents are measured: a daemon whose models follow scripts, and the same models on the
// loopback device of this network namespace, for the same agents on the host.
type agentSetup struct {
	*daemon
	models   map[string]*hostModel // The models on the host by name.
	openclaw *openclawInstall      // OpenClaw on the host; nil until a benchmark uses it.
}

// Names of the models. Each follows a script.
const (
	sampleModel = "sample" // For the built-in agent, which repairs a sample repository.
	talkModel   = "talk"   // For agents that only have to answer talkPrompt.
)

// The prompt and the answer in the runs in which an agent only has to answer.
const (
	talkPrompt = "Say in one sentence what you are."  // The prompt of a run.
	talkAnswer = "I am what this benchmark talks to." // The model's answer to talkPrompt.
)

// scripts contains the script of each model by name.
var scripts = map[string]string{
	sampleModel: sample.Script,
	talkModel:   "fallback: {text: " + talkAnswer + "}\n",
}

// concurrency is the number of concurrent runs that openclawTen measures.
const concurrency = 10

// ensureSetup returns the set-up for benchmarks of agents. It creates the set-up on the first call.
func (s agents) ensureSetup(ctx context.Context) (*agentSetup, error) {
	if s.agents != nil {
		return s.agents, nil
	}
	t := &agentSetup{models: map[string]*hostModel{}}
	s.agents = t
	config := fmt.Sprintf("agentsDir: \"\"\nruns: {concurrent: %d, perAccount: %d}\nproviders:\n", concurrency, concurrency)
	var models strings.Builder
	for _, name := range slices.Sorted(maps.Keys(scripts)) {
		file := filepath.Join(s.Dir, name+".yaml")
		if err := os.WriteFile(file, []byte(scripts[name]), 0o600); err != nil {
			return nil, err
		}
		config += fmt.Sprintf("- {name: %s, kind: scripted, script: %q}\n", name, file)
		fmt.Fprintf(&models, "- {alias: %s, provider: %[1]s, free: true}\n", name)
		var err error
		if t.models[name], err = serveModel(scripts[name]); err != nil {
			return nil, err
		}
	}
	file := filepath.Join(s.Dir, "agents.yaml")
	if err := os.WriteFile(file, []byte(config+"models:\n"+models.String()), 0o600); err != nil {
		return nil, err
	}
	err := inNetwork(s.Net, func() (err error) {
		t.daemon, err = startDaemon(ctx, s.Config, "agents", "--config", file)
		return err
	})
	return t, err
}

// end stops the daemon and the servers of the models on the host.
func (t *agentSetup) end() (err error) {
	if t.daemon != nil {
		err = t.daemon.stop()
	}
	for _, m := range t.models {
		err = errors.Join(err, m.server.Close())
	}
	return err
}

// inNetwork calls f on a thread in the network namespace ns, so that processes that f starts are also in ns. If ns is nil, it
// only calls f.
func inNetwork(ns *os.File, f func() error) error {
	if ns == nil {
		return f()
	}
	return osthread.Do(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace of the host: %w", err)
		}
		return f()
	})
}

// A hostModel is a model on the host that follows a script.
type hostModel struct {
	address string       // Host and port of the server.
	server  *http.Server // Serves the model.
}

// serveModel starts a model that follows a script, on a port of the loopback device.
func serveModel(script string) (*hostModel, error) {
	model, err := scripted.New([]byte(script))
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &hostModel{address: l.Addr().String(), server: &http.Server{Handler: model}}
	go m.server.Serve(l) // Serve returns after Close.
	return m, nil
}
