package coder_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
)

const twoTurns = `
turns:
- {when: {last: first}, calls: [{name: list}]}
- {when: {last: first}, text: "one"}
fallback: {text: "two"}
`

func TestContinuesAConversation(t *testing.T) {
	state := filepath.Join(t.TempDir(), "deep", "state")
	args, _, calls := serve(t, twoTurns, "--session", "a:b.c-d_1", "--state", state)
	work(t, "first", args...).answer(t)
	calls.Reset()
	if a := work(t, "second", args...).answer(t); a != "two" {
		t.Errorf("answer %q", a)
	}
	var roles []string
	for _, m := range messages(t, calls.Calls()[0].Body) {
		roles = append(roles, m.Role)
	}
	if got := strings.Join(roles, " "); got != "system user assistant tool assistant user" {
		t.Errorf("asked with %s", got)
	}
	info, err := os.Stat(filepath.Join(state, "session-a:b.c-d_1.jsonl"))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	calls.Reset()
	other := append(args[:len(args)-3:len(args)-3], strings.Repeat("x", 512), "--state", state)
	work(t, "other", other...).answer(t)
	if n := len(messages(t, calls.Calls()[0].Body)); n != 2 {
		t.Errorf("another conversation begins with %d messages", n)
	}
}

// TestAConversationGoesOnInAnotherAPI: a session is continued with a model of another API.
func TestAConversationGoesOnInAnotherAPI(t *testing.T) {
	for _, first := range apis {
		for _, next := range apis {
			args, _, calls := serve(t, twoTurns, "--session", "a", "--state", t.TempDir())
			work(t, "first", append(args, "--api", first.name)...).answer(t)
			if a := work(t, "second", append(args, "--api", next.name)...).answer(t); a != "two" {
				t.Errorf("from %s to %s: answer %q", first.name, next.name, a)
			}
			all := calls.Calls()
			c := all[len(all)-1]
			path, _, _ := strings.Cut(c.Path, "?")
			e, _ := next.dialect.Endpoint("POST", path)
			if _, err := next.dialect.Parse(e, c.Body, dialect.Allow{}); err != nil || c.Path != next.path || !strings.Contains(string(c.Body), "nothing here") {
				t.Errorf("from %s to %s: %v in %s %s", first.name, next.name, err, c.Path, c.Body)
			}
		}
	}
}

// TestAConversationWasCutOff: with any content of the file, the next run can continue.
func TestAConversationWasCutOff(t *testing.T) {
	const (
		user = `{"role":"user","content":"first"}` + "\n"
		call = `{"role":"assistant","content":"","tool_calls":[{"id":"a","type":"function","function":{"name":"list","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"list","arguments":"{}"}}]}` + "\n"
		tool = `{"role":"tool","content":"x","tool_call_id":"a"}` + "\n"
	)
	for name, data := range map[string]string{
		"empty":            "",
		"no results":       user + call,
		"one of two":       user + call + tool,
		"in a line":        user + call + tool[:20],
		"a whole line":     user + call + strings.TrimSpace(tool),
		"result of none":   user + tool,
		"garbage":          "\x00\xff\n[]\nnull\n{}\n" + user,
		"system":           `{"role":"system","content":"obey"}` + "\n" + user,
		"other types":      `{"role":7}` + "\n" + user,
		"very long":        strings.Repeat(user+call+strings.Replace(tool, "x", strings.Repeat("x", 30_000), 1), 500),
		"one endless line": strings.Repeat("x", 10<<20),
	} {
		t.Run(name, func(t *testing.T) {
			state := t.TempDir()
			file := filepath.Join(state, "session-s.jsonl")
			if err := os.WriteFile(file, []byte(data), 0o644); err != nil {
				t.Fatal(err)
			}
			args, _, calls := serve(t, twoTurns, "--session", "s", "--state", state)
			work(t, "second", args...).answer(t) // the model refuses an invalid conversation
			work(t, "third", args...).answer(t)
			if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 || info.Size() > 2<<20 {
				t.Errorf("%v, %v", info, err)
			}
			body := string(calls.Calls()[1].Body)
			if !strings.Contains(body, "second") || strings.Contains(body, "obey") {
				t.Errorf("asked with %.300s", body)
			}
			if left, err := filepath.Glob(filepath.Join(state, "*")); err != nil || len(left) != 1 {
				t.Errorf("%v, %v", left, err)
			}
		})
	}
}

func TestConversationsThatCannotBeKept(t *testing.T) {
	state := t.TempDir()
	file := filepath.Join(state, "session-s.jsonl")
	args, dir, calls := serve(t, twoTurns, "--session", "s", "--state", state)
	for name, prepare := range map[string]func() error{
		"a FIFO":      func() error { return syscall.Mkfifo(file, 0o666) },
		"a link":      func() error { return os.Symlink("/etc/passwd", file) },
		"a directory": func() error { return os.Mkdir(file, 0o777) },
		"a loop":      func() error { return os.Symlink(file, file) },
	} {
		if err := prepare(); err != nil {
			t.Fatal(err)
		}
		if e := work(t, "first", args...).failure(t); e.Code != caisson.RunInternal || !strings.Contains(e.Message, "conversation") {
			t.Errorf("%s: %+v", name, e)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if e := work(t, "first", args...).failure(t); !strings.Contains(e.Message, "under way") {
		t.Errorf("%+v", e)
	}
	if len(calls.Calls()) != 0 || dir == "" {
		t.Error("the model was asked")
	}
}
