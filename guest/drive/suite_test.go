package drive_test

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// check is a behaviour of an agent and its expected result.
type check struct {
	agent string
	task  func(*task.Task)
	only  func(Kind) bool // nil means all
	want  func(t *testing.T, k Kind, r *Result)
}

// answers expects an answer and success.
func answers(text string) func(*testing.T, Kind, *Result) {
	return func(t *testing.T, _ Kind, r *Result) {
		t.Helper()
		if r.Text != text || r.Code() != "" {
			t.Errorf("text %.200q, error %v, want %.200q", r.Text, r.End.Error, text)
		}
	}
}

// fails expects an error with one of some codes, after a partial answer.
func fails(text string, codes ...string) func(*testing.T, Kind, *Result) {
	return func(t *testing.T, _ Kind, r *Result) {
		t.Helper()
		if r.Text != text || !slices.Contains(codes, r.Code()) {
			t.Errorf("text %.200q, error %v, want %.200q and %s", r.Text, r.End.Error, text, codes)
		}
	}
}

func limit(d time.Duration) func(*task.Task) {
	return func(k *task.Task) { k.Time, k.Grace = caisson.Duration(d), caisson.Duration(d/2) }
}

func parts(k Kind) bool   { return k.Parts }
func repeats(k Kind) bool { return k.Repeats }
func full(k Kind) bool    { return !k.SkipProcessTests }

// bombs reports whether a kind is tested with a fork bomb. Killing it does not depend on the kind, and it uses all of the
// processor.
func bombs(k Kind) bool { return full(k) && (k.Name == "exec" || testneed.All()) }

var checks = []check{
	{agent: "answer", want: answers("You said: the prompt")},
	{agent: "streamed", only: repeats, want: answers("one two\n\nthree")},
	{agent: "whole", want: answers("the answer")},
	{agent: "longer", only: repeats, want: answers("one two")},
	{agent: "other", only: repeats, want: answers("cats\n\ndogs")},
	{agent: "silent", want: func(t *testing.T, k Kind, r *Result) {
		if want := map[bool]string{false: caisson.RunAgentError}[k.Silent]; r.Text != "" || r.Code() != want {
			t.Errorf("text %q, error %v", r.Text, r.End.Error)
		}
	}},
	{agent: "leave", only: func(k Kind) bool { return !k.Silent || k.HasEndLine }, want: fails("", caisson.RunAgentError)},
	{agent: "crash", want: func(t *testing.T, _ Kind, r *Result) {
		if r.Text != "so far" || r.Code() != caisson.RunAgentError || !strings.Contains(r.End.Error.Message, "it broke") || r.End.Exit == nil || r.End.Exit.Code != 3 {
			t.Errorf("text %q, error %v, exit %v", r.Text, r.End.Error, r.End.Exit)
		}
	}},
	{agent: "hang", only: full, task: limit(5 * time.Second), want: fails("so far", caisson.RunTimeout)},
	{agent: "stubborn", only: full, task: limit(5 * time.Second), want: fails("so far", caisson.RunTimeout)},
	{agent: "deaf", only: full, task: limit(5 * time.Second), want: fails("", caisson.RunTimeout)},
	{agent: "flood", only: full, task: func(k *task.Task) { k.Output = 64 << 10 }, want: func(t *testing.T, k Kind, r *Result) {
		if r.Code() != "" || !r.End.Cut || !strings.HasPrefix(r.Text, "beginning ") || k.IgnoresNoise && r.Text != "beginning " {
			t.Errorf("text %.100q, error %v, cut %v", r.Text, r.End.Error, r.End.Cut)
		}
	}},
	{agent: "line", only: func(k Kind) bool { return k.IgnoresNoise && k.Parts }, want: answers("before after")},
	{agent: "errors", only: full, want: func(t *testing.T, k Kind, r *Result) {
		answers("done")(t, k, r)
		if n := len(r.Logs[caisson.LogStderr]); n == 0 || n > 1<<20 || !r.End.Cut {
			t.Errorf("%d bytes of the log, cut %v", n, r.End.Cut)
		}
	}},
	{agent: "garbage", only: func(k Kind) bool { return k.IgnoresNoise }, want: answers("the answer")},
	{agent: "odd", want: answers(oddText)},
	{agent: "tokens", only: parts, want: func(t *testing.T, _ Kind, r *Result) {
		var want strings.Builder
		for i := range tokens {
			want.WriteString(token(i))
		}
		n := 0
		for _, l := range r.Lines {
			if l.Type == caisson.EventTextDelta {
				n++
			}
		}
		if r.Text != want.String() || r.Code() != "" {
			t.Errorf("%d bytes of text, error %v", len(r.Text), r.End.Error)
		}
		// A line that is written because 4 KiB are pending may be a full line and the beginning of another.
		if most := int(r.Took/(20*time.Millisecond)) + 2*tokens/(4<<10) + 2; n > most {
			t.Errorf("%d lines of text in %v, want %d at most", n, r.Took, most)
		}
	}},
	{agent: "background", only: full, want: answers("the answer")},
	{agent: "daemon", only: full, want: answers("the answer")},
	{agent: "bomb", only: bombs, task: limit(5 * time.Second), want: fails("boom", caisson.RunTimeout)},
	{agent: "mute", task: limit(5 * time.Second), want: fails("the answer", caisson.RunTimeout, caisson.RunAgentError)},
	{agent: "late", only: func(k Kind) bool { return k.HasEndLine }, want: answers("the answer")},
	{agent: "write", want: func(t *testing.T, k Kind, r *Result) {
		answers("written")(t, k, r)
		i := slices.IndexFunc(r.Lines, func(l task.Line) bool { return l.Type == task.LineChanges })
		if i < 0 || len(r.Lines[i].Changes) != 1 || !strings.HasSuffix(r.Lines[i].Patch, "+one\n+two\n") {
			t.Fatalf("changes %+v", r.Lines)
		}
		if got, want := r.Lines[i].Changes[0], (caisson.FileChange{Path: "made.txt", Kind: "added", Added: 2}); got != want {
			t.Errorf("change %+v, want %+v", got, want)
		}
	}},
}

// Conform tests that a driver implements a protocol with any behaviour of the agent.
func Conform(t *testing.T, k Kind) {
	for _, c := range checks {
		if c.only != nil && !c.only(k) {
			continue
		}
		t.Run(c.agent, func(t *testing.T) {
			t.Parallel()
			job := k.task(t, c.agent)
			if c.task != nil {
				c.task(job)
			}
			r := Do(t, job)
			if invariants(t, r) {
				c.want(t, k, r)
			}
		})
	}
	if k.SkipProcessTests {
		return
	}
	t.Run("cancel", func(t *testing.T) {
		t.Parallel()
		s := Start(t, k.task(t, "hang"))
		s.ReadUntil(caisson.EventTextDelta)
		s.Signal(syscall.SIGTERM)
		if r := s.Wait(); invariants(t, r) {
			fails("", caisson.RunAborted)(t, k, r)
		}
	})
	t.Run("reader gone", func(t *testing.T) {
		t.Parallel()
		job := k.task(t, "stubborn") // writes nothing more
		job.Grace = caisson.Duration(100 * time.Millisecond)
		s := Start(t, job)
		s.ReadUntil(caisson.EventTextDelta)
		s.CloseReader()
		if code := s.WaitExit(); code != 1 {
			t.Errorf("exit code %d, want 1", code)
		}
	})
	t.Run("slow reader", func(t *testing.T) {
		t.Parallel()
		s := Start(t, k.task(t, "tokens"))
		s.ReadUntil(caisson.EventTextDelta)
		<-time.After(300 * time.Millisecond) // the pipe is full long before
		if r := s.Wait(); invariants(t, r) && (len(r.Text) < tokens/2 || r.Code() != "") {
			t.Errorf("%d bytes of text, error %v", len(r.Text), r.End.Error)
		}
	})
}

func (k Kind) task(t *testing.T, agent string) *task.Task {
	job := Task(t, k.Driver, k.Name+"/"+agent)
	job.Events = k.Events
	return job
}

// invariants checks what holds for every task that is read to its end.
func invariants(t *testing.T, r *Result) bool {
	t.Helper()
	if r.End == nil {
		t.Errorf("no end; exit code %d", r.Exit)
		return false
	}
	if r.Exit != 0 {
		t.Errorf("exit code %d", r.Exit)
	}
	if r.Final != (r.End.Error == nil) {
		t.Errorf("assistant_final: %v, error: %v", r.Final, r.End.Error)
	}
	return true
}
