package worker_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/worker"
)

func TestJobRuns(t *testing.T) {
	r := newRunner(t)
	got, err := echoJob.Run(t.Context(), r, "a", worker.RunInput{Input: strings.NewReader("bc")})
	if err != nil || got != "abc" {
		t.Errorf("got %q, %v", got, err)
	}
	_, root := ownedDir(t, 70000)
	names, err := listJob.Run(t.Context(), r, none{}, worker.RunInput{Root: root, Files: []*os.File{root}})
	if err != nil || len(names) != 0 {
		t.Errorf("got %q, %v", names, err)
	}
	if _, err := listJob.Run(t.Context(), r, none{}, worker.RunInput{Root: root}); caisson.KindOf(err) != caisson.Internal {
		t.Errorf("without its descriptor: %v", err)
	}
}

// listJob lists its root directory, whose descriptor must be the only one.
var listJob = job[none, []string]{Name: "list", Root: true, Files: 1, Do: func(_ context.Context, c *worker.Call, _ none) ([]string, error) {
	return c.Root.Readdirnames(-1)
}}

// recorded keeps the request of a job, and replies to it with a JSON value.
type recorded struct {
	req   worker.Request
	reply string
}

func (r *recorded) Run(_ context.Context, req worker.Request, reply any) error {
	r.req = req
	return json.Unmarshal([]byte(r.reply), reply)
}

// TestJobDeclares: a run has the confinement that the job declares, and its reply is checked.
func TestJobDeclares(t *testing.T) {
	short := worker.Limits{Time: time.Second}
	j := job[int, int]{Name: "j", Programs: true, Access: worker.WriteAsOwner, Limits: short,
		Valid: func(most int, reply *int) bool { return *reply <= most }}
	for _, tt := range []struct {
		job    job[int, int]
		given  worker.RunInput
		limits worker.Limits
		reply  string
		ok     bool
	}{
		{j, worker.RunInput{}, short, "3", true},
		{j, worker.RunInput{Limits: worker.Limits{Memory: 1}}, worker.Limits{Memory: 1}, "3", true},
		{j, worker.RunInput{}, short, "4", false},
		{job[int, int]{Name: "j", Network: true}, worker.RunInput{}, worker.Limits{}, "4", true},
	} {
		r := recorded{reply: tt.reply}
		got, err := tt.job.Run(t.Context(), &r, 3, tt.given)
		if (err == nil) != tt.ok || err != nil && (caisson.KindOf(err) != caisson.Internal || got != 0) {
			t.Errorf("the reply %s: %d, %v", tt.reply, got, err)
		}
		q := r.req
		if q.Job != "j" || q.Args != 3 || q.Programs != tt.job.Programs || q.Network != tt.job.Network || q.Access != tt.job.Access || q.Limits != tt.limits {
			t.Errorf("%+v", q)
		}
	}
}

func TestRowsAreBounded(t *testing.T) {
	type row struct{ A string }
	var text strings.Builder
	if err := worker.WriteRows(&text, []row{{"x"}, {"y"}}); err != nil {
		t.Fatal(err)
	}
	if got, err := worker.ReadRows[row](strings.NewReader(text.String()), 2, 20); err != nil || len(got) != 2 || got[1].A != "y" {
		t.Errorf("%v, %v", got, err)
	}
	for name, in := range map[string]string{
		"too many": text.String() + `{"A":""}`, "too long": `{"A":"` + strings.Repeat("x", 20) + `"}`, "unknown": `{"B":1}`,
		"two values": `{}{}`, "nothing": "\n",
	} {
		if got, err := worker.ReadRows[row](strings.NewReader(in), 2, 20); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}
