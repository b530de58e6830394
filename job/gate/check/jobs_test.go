package check

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/worker"
)

// brokenRunner is a runner whose jobs fail.
type brokenRunner struct{ reply string }

func (r brokenRunner) Run(_ context.Context, req worker.Request, _ any) error {
	if r.reply == "" {
		return errors.New("broken")
	}
	_, err := req.Files[0].WriteString(r.reply)
	return err
}

// TestToolCheckFailsClosed checks that the job's reply is not trusted.
func TestToolCheckFailsClosed(t *testing.T) {
	host := checkedHost(t)
	for reply, ok := range map[string]bool{"": false, "{}": false, `{"Verdict":"pass"}`: true, `{"Verdict":"pass"}` + "\n" + `{"Verdict":"pass"}`: false} {
		changes := []caisson.Change{addedAt("a")}
		err := RunChanges(t.Context(), brokenRunner{reply}, host, host, changes, Rules{})
		if (err == nil) != ok || (changes[0].Verdict == pass) != ok {
			t.Errorf("the answer %q: %v, %s", reply, err, changes[0].Verdict)
		}
	}
	// The job cannot make a verdict less strict.
	changes := []caisson.Change{but(addedAt("a"), func(c *caisson.Change) { c.Verdict = caisson.VerdictConflict })}
	if err := RunChanges(t.Context(), brokenRunner{`{"Verdict":"pass","Findings":null}`}, host, host, changes, Rules{}); err != nil || changes[0].Verdict != caisson.VerdictConflict {
		t.Errorf("%v, %s", err, changes[0].Verdict)
	}
	changes = []caisson.Change{addedAt("a")}
	reply := `{"Verdict":"pass","Findings":[{"check":"path","verdict":"deny","message":"x"}]}`
	if err := RunChanges(t.Context(), brokenRunner{reply}, host, host, changes, Rules{}); err != nil || changes[0].Verdict != deny {
		t.Errorf("%v, %s", err, changes[0].Verdict)
	}
}

func TestReadChecked(t *testing.T) {
	good := `{"Verdict":"ask","Findings":[{"check":"secret","verdict":"ask","message":"x","line":3}]}` + "\n"
	if got, err := readChecked(strings.NewReader(good+good), 2); err != nil || len(got) != 2 || got[1].Findings[0].Line != 3 {
		t.Errorf("%v, %v", got, err)
	}
	for name, text := range map[string]string{
		"too few":         good,
		"too many":        good + good + good,
		"no verdict":      good + `{"Verdict":"","Findings":null}`,
		"unknown verdict": good + `{"Verdict":"fine"}`,
		"unknown check":   good + strings.Replace(good, "secret", "luck", 1),
		"unknown field":   good + `{"Verdict":"pass","Path":"x"}`,
		"escapes":         good + strings.Replace(good, `"x"`, `"\u001b[2J"`, 1),
		"long":            good + strings.Replace(good, `"x"`, `"`+strings.Repeat("x", 1000)+`"`, 1),
		"endless":         good + strings.Repeat("x", 1<<20),
		"nonsense":        good + "\x00",
	} {
		if got, err := readChecked(strings.NewReader(text), 2); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}
