package coder_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/coder"
	"github.com/caisson-dev/caisson/guest/coder/sample"
	"github.com/caisson-dev/caisson/guest/drive"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/wire/llm/scripted/scriptedtest"
)

// TestMain also runs the roles of the program that is in every sandbox.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "drive":
			os.Exit(drive.Main(os.Args[2:], os.Stdin, os.Stdout, drive.Drivers()))
		case "code":
			os.Exit(coder.Main(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
		}
	}
	os.Exit(m.Run())
}

// TestThroughTheDriver runs the agent as a run does: started by the driver, which passes on its events.
func TestThroughTheDriver(t *testing.T) {
	url, _ := scriptedtest.Serve(t, sample.Script)
	dir := t.TempDir()
	if err := sample.Write(dir); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(task.Task{
		Driver: caisson.DriverJSONL, Events: map[string]string{"dialect": "caisson"}, PromptMode: caisson.PromptStdin, Prompt: sample.Prompt,
		Command: []string{self, "code", "--model", "m", "--gateway", url, "--session", "", "--state", filepath.Join(t.TempDir(), "state")},
		Workdir: dir, Time: caisson.Duration(time.Minute), Grace: caisson.Duration(time.Second), Output: 8 << 20, Track: dir,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "drive")
	cmd.Stdin, cmd.Stderr = bytes.NewReader(body), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var text strings.Builder
	var tools, changed []string
	var usage *caisson.RunUsage
	for line := range strings.Lines(string(out)) {
		var l task.Line
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		text.WriteString(l.Delta)
		switch l.Type {
		case caisson.EventToolStart:
			tools = append(tools, l.Tool)
		case caisson.EventUsage:
			usage = l.Usage
		case task.LineChanges:
			for _, c := range l.Changes {
				changed = append(changed, c.Kind+" "+c.Path)
			}
		case task.LineEnd:
			if l.Error != nil {
				t.Errorf("ended with %v", l.Error)
			}
		}
	}
	want := "I look at the repository and run its tests.\n\nNumbers with a 4 are wrong. I read the program.\n\nThe table has no line for 4. I add it.\n\n" +
		"The test failed because `roman.sh` had no numeral for 4. I added `4 IV` to its table, and `sh test.sh` now passes."
	if text.String() != want {
		t.Errorf("said %q", text.String())
	}
	if got := strings.Join(tools, " "); got != "list shell read edit shell" {
		t.Errorf("tools %s", got)
	}
	if got := strings.Join(changed, ", "); got != "modified roman.sh" {
		t.Errorf("changes %s", got)
	}
	if usage == nil || usage.Calls != 5 {
		t.Errorf("usage %+v", usage)
	}
}

// TestNoProxyIsUsed checks that the agent does not use a proxy from its environment.
func TestNoProxyIsUsed(t *testing.T) {
	args, _, _ := serve(t, `fallback: {text: fine}`)
	for i := range args {
		args[i] = strings.Replace(args[i], "127.0.0.1", "0.0.0.0", 1) // net/http never uses a proxy for loopback addresses
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, append([]string{"code"}, args...)...)
	cmd.Env = append(os.Environ(), "HTTP_PROXY=http://127.0.0.1:1", "http_proxy=http://127.0.0.1:1", "NO_PROXY=", "no_proxy=")
	cmd.Stdin, cmd.Stderr = strings.NewReader("go"), os.Stderr
	if out, err := cmd.Output(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestEndsWithASignal: a signal cancels the task, and the last line reports it.
func TestEndsWithASignal(t *testing.T) {
	args, dir, _ := serve(t, `turns: [{calls: [{name: shell, arguments: '{"command": "echo $$ > pid; touch up; sleep 600"}'}]}]`)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, append([]string{"code"}, args...)...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = strings.NewReader("go"), &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, time.Minute, func() bool { _, err := os.Stat(filepath.Join(dir, "up")); return err == nil })
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%v", err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, `"type":"error"`) || !strings.Contains(last, caisson.RunAborted) {
		t.Errorf("the last line is %s", last)
	}
	poll.Until(t, time.Minute, func() bool {
		_, err := os.Stat("/proc/" + strings.TrimSpace(readFile(t, filepath.Join(dir, "pid"))))
		return err != nil
	})
}
