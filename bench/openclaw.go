package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent/openclaw"
	"github.com/caisson-dev/caisson/internal/tree"
)

// The agents that run OpenClaw: the one in the catalog, with its template, and a copy of it without a warm snapshot.
const (
	openclawAgent    = "openclaw"               // The agent in the catalog.
	openclawTemplate = "agent-" + openclawAgent // The template of openclawAgent.
	coldAgent        = "openclaw-cold"          // The copy without a warm snapshot.
)

// openclawTimeout is the maximum time for a turn of OpenClaw on the host.
const openclawTimeout = 2 * time.Minute

// An openclawInstall is an installation of OpenClaw on the host, with the same files as in the agent's template.
type openclawInstall struct {
	size caisson.Size // Size of the agent's warm snapshot on disk.
	dir  string       // Directory with the installation, on the host.
	env  []string     // Environment of OpenClaw's commands.
	n    int          // Number of conversations so far.
}

// ensureOpenclaw returns the set-up of ensureSetup with OpenClaw. On the first call it installs OpenClaw from npm in a sandbox,
// makes the warm snapshot and copies the installation to the host.
func (s agents) ensureOpenclaw(ctx context.Context) (*agentSetup, error) {
	t, err := s.ensureSetup(ctx)
	if err != nil || t.openclaw != nil {
		return t, err
	}
	fmt.Fprintln(s.Log, "installing OpenClaw in a sandbox and making its warm snapshot; this takes minutes")
	stage := ""
	warm, err := t.api.WarmAgent(ctx, openclawAgent, func(p caisson.Progress) {
		if p.Stage != stage {
			fmt.Fprintln(s.Log, " ", p.Stage)
		}
		stage = p.Stage
	})
	if err != nil {
		return nil, fmt.Errorf("make the warm snapshot of OpenClaw: %w", err)
	}
	cold := *warm
	cold.ID, cold.Name, cold.Image, cold.Template, cold.Warm = coldAgent, "OpenClaw from its template", "", openclawTemplate, nil
	if _, err := t.api.PutAgent(ctx, cold); err != nil {
		return nil, err
	}
	c := &openclawInstall{size: warm.Status.Size, dir: filepath.Join(s.Dir, "claw")}
	if err := t.copyOut(ctx, c.dir); err != nil {
		return nil, fmt.Errorf("copy OpenClaw out of its template: %w", err)
	}
	if err := c.configure(t.models[talkModel].address); err != nil {
		return nil, err
	}
	t.openclaw = c
	return t, nil
}

// copyOut copies the installation of OpenClaw from its template to the new directory dir on the host.
func (t *agentSetup) copyOut(ctx context.Context, dir string) (err error) {
	sb, err := t.api.Create(ctx, caisson.CreateRequest{Template: openclawTemplate})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.api.Remove(ctx, string(sb.ID))) }()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	r, err := t.api.ReadTree(ctx, string(sb.ID), openclaw.Install)
	if err != nil {
		return err
	}
	defer r.Close()
	return tree.Unpack(r, root, tree.Options{Name: "install", KeepLinks: true})
}

// hostPath replaces paths of the sandbox in an argument or a variable by the corresponding paths on the host.
func (c *openclawInstall) hostPath(s string) string {
	return strings.NewReplacer(openclaw.Install, filepath.Join(c.dir, "install"), openclaw.Home, filepath.Join(c.dir, "home")).Replace(s)
}

// configure writes the configuration that OpenClaw has in a sandbox, but with the model on the host at the address model.
func (c *openclawInstall) configure(model string) error {
	files, err := openclaw.Config(openclaw.Setup{
		Agent: &caisson.Agent{ID: openclawAgent}, Models: []caisson.Model{{Alias: talkModel}},
		Workdir: filepath.Join(c.dir, "workspace"), Home: c.hostPath(openclaw.Home), BaseURL: "http://" + model + "/v1",
	})
	if err != nil {
		return err
	}
	for _, f := range append(files, caisson.SeedFile{Path: filepath.Join(c.dir, "prompt"), Data: talkPrompt}) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(f.Path), 0o700), os.WriteFile(f.Path, []byte(f.Data), 0o600)); err != nil {
			return err
		}
	}
	for k, v := range openclaw.Env() {
		c.env = append(c.env, k+"="+c.hostPath(v))
	}
	c.env = append(c.env, "PATH=/usr/local/bin:/usr/bin:/bin")
	for _, dir := range []string{"state", "home"} {
		if err := os.MkdirAll(filepath.Join(c.hostPath(openclaw.Home), dir), 0o700); err != nil {
			return err
		}
	}
	return os.MkdirAll(filepath.Join(c.dir, "workspace"), 0o700)
}

// turn does one turn in a new conversation with the command line of OpenClaw on the host.
func (c *openclawInstall) turn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openclawTimeout)
	defer cancel()
	c.n++
	fill := strings.NewReplacer(
		"agent:{persona}:local", fmt.Sprintf("agent:main:turn%d", c.n), "{persona}", "main", "{model}", talkModel, "{prompt}", filepath.Join(c.dir, "prompt"),
	)
	var argv []string
	for _, arg := range openclaw.Command() {
		argv = append(argv, c.hostPath(fill.Replace(arg)))
	}
	// The modules that make forks of a snapshot safe are not needed on a host.
	argv = slices.DeleteFunc(argv, func(arg string) bool { return strings.HasPrefix(arg, "--require=") })
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = filepath.Join(c.dir, "workspace"), c.env
	return runExpecting(cmd, talkAnswer)
}

// openclawOnHost is the description, in a row, of what runs of OpenClaw are compared with.
const openclawOnHost = "openclaw agent --local on the host"

// measureTalk returns a measure that makes a run of an agent with talkPrompt, and appends it to all. warm reports whether the run
// must start from the warm snapshot.
func (t *agentSetup) measureTalk(all *measuredRuns, agent string, warm bool) measure {
	return all.record(func(ctx context.Context) (*measuredRun, error) {
		return t.runAndRemove(ctx, caisson.RunRequest{Agent: agent, Model: talkModel, Prompt: talkPrompt})
	}, checkTalk(warm))
}

// checkTalk returns a function that checks the answer of a run with talkPrompt, and that the run started from the warm snapshot
// if and only if warm is true.
func checkTalk(warm bool) func(*caisson.Run) error {
	return func(r *caisson.Run) error { return errors.Join(checkAnswer(talkAnswer)(r), checkWarm(r, warm)) }
}

// checkWarm returns an error if a run started from the warm snapshot and warm is false, or if it did not and warm is true.
func checkWarm(r *caisson.Run, warm bool) error {
	if r.Result.Warm != warm {
		return fmt.Errorf("run %s of %s began as a fork of the warm snapshot: %t, not %t", r.ID, r.Agent, r.Result.Warm, warm)
	}
	return nil
}

// openclawWarm compares runs of OpenClaw from its warm snapshot with OpenClaw's own command line on the host.
func (s agents) openclawWarm(ctx context.Context, t *agentSetup) error {
	var ours measuredRuns
	all, err := interleave(ctx, max(s.N/2, 1), t.measureTalk(&ours, openclawAgent, true), operation{do: t.openclaw.turn}.measure())
	if err != nil {
		return err
	}
	s.addRun(newRow("agent.openclaw.warm", "ms", all[0], openclawOnHost, all[1]).under(1500).atMostTimes(0.2), ours)
	return nil
}

// openclawCold compares runs of OpenClaw without a warm snapshot, each of which starts OpenClaw's gateway, with OpenClaw's own
// command line on the host.
func (s agents) openclawCold(ctx context.Context, t *agentSetup) error {
	var ours measuredRuns
	all, err := interleave(ctx, max(s.N/5, 1), t.measureTalk(&ours, coldAgent, false), operation{do: t.openclaw.turn}.measure())
	if err != nil {
		return err
	}
	s.addRun(newRow("agent.openclaw.cold", "ms", all[0], openclawOnHost, all[1]), ours)
	return nil
}

// openclawTen measures the time until ten concurrently started runs of OpenClaw have ended, and the duration of the slowest of
// these runs.
func (s agents) openclawTen(ctx context.Context, t *agentSetup) error {
	var slowest samples
	all, err := interleave(ctx, max(s.N/5, 1), func(ctx context.Context) (samples, error) {
		var runs [concurrency]*measuredRun
		start := time.Now()
		err := concurrently(ctx, concurrency, func(ctx context.Context, i int) (err error) {
			runs[i], err = t.run(ctx, caisson.RunRequest{Agent: openclawAgent, Model: talkModel, Prompt: talkPrompt})
			return err
		})
		total := milliseconds(time.Since(start))
		if err != nil {
			return nil, err
		}
		worst := 0.0
		for _, tr := range runs {
			if err := checkTalk(true)(tr.run); err != nil {
				return nil, err
			}
			worst = max(worst, tr.ms)
		}
		slowest = append(slowest, worst)
		return samples{total}, t.waitRemoved(ctx, runs[:]...)
	})
	if err != nil {
		return err
	}
	s.add(newRow("agent.openclaw.ten", "ms", all[0], "", nil))
	s.add(newRow("agent.openclaw.ten.slowest", "ms", slowest[1:], "", nil))
	return nil
}

// openclawSnapshot adds a row with the size of the warm snapshot of OpenClaw on disk.
func (s agents) openclawSnapshot(ctx context.Context, t *agentSetup) error {
	s.add(newRow("agent.openclaw.snapshot", "MB", samples{float64(t.openclaw.size) / 1e6}, "", nil))
	return nil
}
