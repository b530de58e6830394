package test_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/caisson-dev/caisson"
)

// agentPrice is the price of the models of real agents, whose requests are long: a dollar for ten thousand tokens.
var agentPrice = caisson.Prices{Input: 100 * caisson.Dollar, Output: 100 * caisson.Dollar}

// agentModel returns a model in the form of the configuration, at [agentPrice].
func agentModel(alias, provider string) string {
	return fmt.Sprintf("{alias: %s, provider: %s, upstream: %s-1, context: 200000, output: 4000, prices: {input: %s, output: %s}}",
		alias, provider, alias, agentPrice.Input, agentPrice.Output)
}

// agentScript returns the script of a model that real agents use, each with its own tool for running commands. The
// billed tokens are counted from the text.
func agentScript() string {
	var b strings.Builder
	b.WriteString("turns:\n")
	for _, t := range []struct{ tool, argument string }{{"exec", "command"}, {"bash", "command"}, {"Bash", "command"}, {"exec_command", "cmd"}, {"run_shell_command", "command"}} {
		call := func(command string) string {
			arguments, err := json.Marshal(map[string]string{t.argument: command, "description": "Do it"})
			if t.argument == "cmd" || t.tool == "exec" {
				arguments, err = json.Marshal(map[string]string{t.argument: command})
			}
			if err != nil {
				panic(err) // Strings can always be encoded.
			}
			return fmt.Sprintf("[{name: %s, arguments: %q}]", t.tool, arguments)
		}
		for _, turn := range []struct{ last, text, command, then string }{
			{"Make the file", "I make it.", "pwd; echo made by a tool > made.txt; cat given.txt", "The file is there, and the tool said: {{result}}"},
			{"Which word was it", "I look.", "cat made.txt", "You said heron. The file says: {{result}}"},
			{"Leave the mark alpha", "I leave my mark.", leaveMark("alpha"), ""},
			{"Leave the mark beta", "I leave my mark.", leaveMark("beta"), ""},
			{"Wait for long", "I wait.", "touch /tmp/waits; sleep 3000", "I have waited."},
		} {
			fmt.Fprintf(&b, "- {when: {last: %q}, text: %q, calls: %s}\n", turn.last, turn.text, call(turn.command))
			if turn.then != "" {
				if t.tool == "exec_command" && turn.last == "Make the file" { // Codex, whose answer has to arrive in parts where TestAgentCodex counts them
					fmt.Fprintf(&b, "- {when: {last: please. Remember, tool: %s}, text: %q, chunk: 8, delay: {chunk: 60ms}}\n", t.tool, turn.then)
				}
				fmt.Fprintf(&b, "- {when: {last: %q, tool: %s}, text: %q}\n", turn.last, t.tool, turn.then)
			}
		}
		// By now both runs have left their marks.
		fmt.Fprintf(&b, "- {when: {last: Leave the mark, tool: %s, result: marked}, calls: %s}\n", t.tool, call(lookAround))
		fmt.Fprintf(&b, "- {when: {last: Leave the mark, tool: %s, result: seen}, text: \"{{result}}\"}\n", t.tool)
		fmt.Fprintf(&b, "- {when: {last: Spend all there is}, repeat: true, calls: %s}\n", call("true"))
	}
	b.WriteString(`- {when: {last: Remember the word heron}, text: "I remember."}` + "\n")
	b.WriteString(`fallback: {text: "You said {{last}}."}` + "\n")
	return b.String()
}

// leaveMark returns a command that creates files and a process that other sandboxes must not see.
func leaveMark(name string) string {
	return fmt.Sprintf("for d in /workspace /tmp /root /dev/shm; do echo %s > $d/mark-%[1]s; done; setsid sh -c 'sleep 3000; : process-%[1]s' > /dev/null 2>&1 & echo marked", name)
}

// lookAround is a command that prints the visible files and processes.
const lookAround = "hostname; cat /etc/machine-id; ls /workspace /tmp /root /dev/shm; cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -o 'process-[a-z]*' | sort -u; echo seen"

// A meeting holds calls of models back until a number of runs are in the middle of a turn.
type meeting struct {
	mu   sync.Mutex
	runs map[string]bool // guarded by mu
	all  chan struct{}   // Closed when all runs have arrived.
	of   int
}

func newMeeting(of int) *meeting {
	return &meeting{runs: map[string]bool{}, all: make(chan struct{}), of: of}
}

func (m *meeting) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		if _, err := body.ReadFrom(r.Body); err != nil {
			return
		}
		if run := runOf(r.Header); run != "" && bytes.Contains(body.Bytes(), []byte("I leave my mark.")) {
			m.arrive(run)
			select {
			case <-m.all:
			case <-r.Context().Done():
			}
		}
		r.Body = readCloser{&body}
		next.ServeHTTP(w, r)
	})
}

func (m *meeting) arrive(run string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if before := len(m.runs); before < m.of {
		if m.runs[run] = true; len(m.runs) == m.of {
			close(m.all)
		}
	}
}

type readCloser struct{ *bytes.Buffer }

// Close implements [io.Closer].
func (readCloser) Close() error { return nil }

// runOf returns the run that a call is attributed to in LiteLLM's header.
func runOf(h http.Header) string {
	var meta struct {
		Run string `json:"run_id"`
	}
	_ = json.Unmarshal([]byte(h.Get("X-Litellm-Spend-Logs-Metadata")), &meta) // Without the header the run is "".
	return meta.Run
}
