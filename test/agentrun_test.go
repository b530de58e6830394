package test_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/wire/llm/scripted/scriptedtest"
)

// does runs an agent and returns the record of the run. The exit code must be the one of the record.
func (h *host) does(args ...string) caisson.Run {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), install)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := h.command(ctx, append([]string{"run", "-o", "json"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var r caisson.Run
	if jerr := json.Unmarshal(out.Bytes(), &r); jerr != nil || r.Result == nil {
		h.t.Fatalf("caisson run %s: %v, %v\n%.4000s\n%.4000s", strings.Join(args, " "), err, jerr, out.String(), errs.String())
	}
	if (err == nil) != (r.State == caisson.RunSucceeded) {
		h.t.Errorf("a run that is %s ended with %v", r.State, err)
	}
	h.once(r)
	return r
}

// succeeds is does for runs that must succeed.
func (h *host) succeeds(args ...string) caisson.Run {
	h.t.Helper()
	r := h.does(args...)
	if r.State != caisson.RunSucceeded {
		h.t.Fatalf("run %s is %s: %v; its answer %.2000q", r.ID, r.State, r.Result.Error, r.Result.Answer)
	}
	return r
}

// wantError checks that a run has failed with an error code and that its message contains words.
func (h *host) wantError(r caisson.Run, code, words string) {
	h.t.Helper()
	if r.State != caisson.RunFailed || r.Result == nil || r.Result.Error == nil || r.Result.Error.Code != code || !strings.Contains(r.Result.Error.Message, words) {
		h.t.Errorf("run %s is %s, want %s and %q: %+v", r.ID, r.State, code, words, r.Result)
	}
}

// accountOf returns the flags that commands need for a run of another account. With a token the account is the token's.
func accountOf(r caisson.Run) []string {
	if r.Account == caisson.LocalAccount || !r.Local {
		return nil
	}
	return []string{"--account", r.Account}
}

// happened returns the events of a run, as attach prints them.
func (h *host) happened(id caisson.ID, flags ...string) (list []caisson.RunEvent) {
	h.t.Helper()
	shown := h.run(append(flags, "attach", "-o", "jsonl", string(id))...).stdout // The exit code is the run's.
	dec := json.NewDecoder(strings.NewReader(shown))
	for dec.More() {
		var e caisson.RunEvent
		if err := dec.Decode(&e); err != nil {
			h.t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

// once checks the invariants of a run's events: consecutive numbers; one done event at the end of each attempt; before
// it the answer, which equals all text events joined, or the error.
func (h *host) once(r caisson.Run) {
	h.t.Helper()
	list := h.happened(r.ID, accountOf(r)...)
	text, done, finals, faults := "", 0, 0, 0
	for i, e := range list {
		if e.Seq != int64(i+1) {
			h.t.Errorf("run %s: event %d has the number %d", r.ID, i+1, e.Seq)
		}
		if e.Attempt != 0 && e.Attempt != r.Attempt {
			continue
		}
		switch e.Type {
		case caisson.EventTextDelta:
			text += e.Delta
		case caisson.EventFinal:
			finals++
			if e.Content != text || text != r.Result.Answer {
				h.t.Errorf("run %s: the answer is %q, of %q, in the record %q", r.ID, e.Content, text, r.Result.Answer)
			}
		case caisson.EventError:
			faults++
		case caisson.EventDone:
			done++
		}
	}
	want := 1
	if r.State != caisson.RunSucceeded {
		want = 0
	}
	if done != 1 || finals != want || faults != 1-want || len(list) == 0 || list[len(list)-1].Type != caisson.EventDone {
		h.t.Errorf("run %s, which is %s: %d done, %d answers, %d errors: %+v", r.ID, r.State, done, finals, faults, list[max(0, len(list)-5):])
	}
}

// midway waits until the agent of a run has started to use a tool, and returns the run.
func (h *host) midway(id caisson.ID) caisson.Run {
	h.t.Helper()
	var r caisson.Run
	poll.Until(h.t, 2*hang, func() bool {
		r = h.record(id)
		if r.State.Ended() {
			h.t.Fatalf("run %s has ended: %+v", id, r.Result)
		}
		return r.State == caisson.RunRunning && h.run("exec", string(r.Sandbox), "--", "test", "-e", "/tmp/waits").code == 0
	})
	return r
}

// billed returns the calls of a run that a provider has received, and the sum of their tokens.
func (u *upstream) billed(run caisson.ID) (list []scriptedtest.Call, sum caisson.TokenCount) {
	for _, c := range u.Calls() {
		if runOf(c.Header) == string(run) {
			list = append(list, c)
			sum.Input, sum.Output = sum.Input+c.Billed.Input, sum.Output+c.Billed.Output
		}
	}
	return list, sum
}

// accounts checks that run, ledger and provider agree on the usage of a run, and returns the calls that the provider
// received.
func (h *agentHost) accounts(r caisson.Run) []scriptedtest.Call {
	h.t.Helper()
	calls, tokens := h.litellm.billed(r.ID)
	rows := h.ledger("--run", string(r.ID))
	used, cost := caisson.TokenCount{}, caisson.USD(0)
	for _, row := range rows {
		used.Input, used.Output, cost = used.Input+row.Tokens.Input, used.Output+row.Tokens.Output, cost+row.Cost
		if row.Status == http.StatusOK && (row.Estimated || row.Cost != agentPrice.Cost(row.Tokens)) || row.Agent != r.Agent || row.Run != string(r.ID) {
			h.t.Errorf("run %s: the ledger has %+v", r.ID, row)
		}
	}
	u := r.Result.Usage
	if len(rows) < len(calls) || used != tokens || u.Tokens != tokens || u.Cost != cost || u.Calls != int64(len(rows)) || cost == 0 {
		h.t.Errorf("run %s: the model counted %d calls and %+v, the ledger has %d and %+v for %s, the run says %+v", r.ID, len(calls), tokens, len(rows), used, cost, u)
	}
	return calls
}

// changed returns the kind of change that a run reports for a file of its workspace, or "".
func changed(r caisson.Run, path string) string {
	i := slices.IndexFunc(r.Result.Changes, func(c caisson.FileChange) bool { return c.Path == path })
	if i < 0 {
		return ""
	}
	return r.Result.Changes[i].Kind
}

// project creates a directory for agents.
func (h *host) project(name string) string {
	h.t.Helper()
	h.write(filepath.Join(name, "given.txt"), "given by the host\n")
	return filepath.Join(h.dir, name)
}

// waitFor waits until cond returns true.
func (h *host) waitFor(cond func() bool) {
	h.t.Helper()
	poll.Until(h.t, hang, cond)
}

// testdata returns the content of a file in testdata.
func (h *host) testdata(name string) string {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(data)
}

// tree describes a directory: names, modes, times and content.
func (h *host) tree(dir string) string {
	h.t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %v %v", strings.TrimPrefix(p, dir), info.Mode(), info.ModTime())
		if d.Type().IsRegular() {
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %x", sha256.Sum256(data))
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		h.t.Error(err)
	}
	return b.String()
}
