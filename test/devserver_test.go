package test_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/npmtest"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
)

// TestDevServer tests that Vite's server, which listens on 127.0.0.1 of a sandbox, is seen in a browser through a signed URL, that
// changes of files arrive in the page, and that a reload of the page resumes the sandbox.
func TestDevServer(t *testing.T) {
	testneed.Full(t, "TestSignedURLs has another server and client")
	t.Parallel()
	modules := npmtest.Dir(t, "vite", npmtest.Files(t, "testdata/vite"))
	page := newTab(t)
	h := newRoutedHost(t)
	h.ok("sandbox", "create", "--name", "dev", "--mount", modules+":/modules")
	title := func(text string) string {
		return "cat > /tmp/site/main.js <<'EOF'\ndocument.title = '" + text + "'\nimport.meta.hot.accept()\nEOF\n"
	}
	h.sh("dev", "mkdir /tmp/site && ln -s /modules/node_modules /tmp/site/node_modules\n"+title("first")+`
echo '<script type="module" src="/main.js"></script>' > /tmp/site/index.html
echo 'export default { cacheDir: "/tmp/vite" }' > /tmp/site/vite.config.js
cd /tmp/site; setsid node_modules/.bin/vite --host 127.0.0.1 --port 5173 --strictPort > /tmp/vite.log 2>&1 &`)
	poll.Until(t, hang, func() bool { return strings.Contains(h.sh("dev", "cat /tmp/vite.log"), "ready in") })
	page.open(strings.TrimSpace(h.ok("open", "dev", "5173", "--no-browser")))
	page.shows("document.title", "first")
	page.eval("window.same = 'yes'; ''")
	h.sh("dev", title("second"))
	page.shows("document.title + window.same", "secondyes")
	h.ok("sandbox", "pause", "dev")
	page.eval("location.reload(); ''")
	page.shows("document.title + window.same", "secondundefined")
	if sb := h.show("dev"); sb.State != caisson.Running {
		t.Errorf("the sandbox is %s", sb.State)
	}
	h.sh("dev", title("third"))
	page.shows("document.title", "third")
}

// A tab is a page of a headless Chromium, used by the Chrome DevTools Protocol.
type tab struct {
	t    *testing.T
	conn *websocket.Conn
	call int
}

// newTab starts a browser with additional flags, which ends with the test.
func newTab(t *testing.T, flags ...string) *tab {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		testneed.Skip(t, "chromium", err.Error())
	}
	dir := t.TempDir()
	var said bytes.Buffer
	cmd := exec.Command(program, append(flags, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-port=0",
		"--user-data-dir="+dir)...)
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("the browser said: %s", &said)
		}
	})
	port := ""
	poll.Until(t, hang, func() bool {
		b, _ := os.ReadFile(filepath.Join(dir, "DevToolsActivePort"))
		var found bool
		port, _, found = strings.Cut(string(b), "\n")
		return found
	})
	r, err := http.NewRequest(http.MethodPut, "http://127.0.0.1:"+port+"/json/new?about:blank", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var target struct {
		URL string `json:"webSocketDebuggerUrl"`
	}
	if err := json.NewDecoder(res.Body).Decode(&target); err != nil {
		t.Fatal(err)
	}
	conn, _, err := websocket.Dial(t.Context(), target.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	return &tab{t: t, conn: conn}
}

// do calls a method and decodes its result.
func (p *tab) do(method string, params map[string]any, result any) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), hang)
	defer cancel()
	p.call++
	if err := wsjson.Write(ctx, p.conn, map[string]any{"id": p.call, "method": method, "params": params}); err != nil {
		p.t.Fatal(err)
	}
	for {
		var answer struct {
			ID     int             `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  json.RawMessage `json:"error"`
		}
		if err := wsjson.Read(ctx, p.conn, &answer); err != nil {
			p.t.Fatal(err)
		}
		if answer.ID != p.call {
			continue // an event
		}
		if answer.Error != nil {
			p.t.Fatalf("%s: %s", method, answer.Error)
		}
		if err := json.Unmarshal(answer.Result, result); err != nil {
			p.t.Fatal(err)
		}
		return
	}
}

// open goes to a URL.
func (p *tab) open(url string) {
	p.t.Helper()
	var r struct{ ErrorText string }
	if p.do("Page.navigate", map[string]any{"url": url}, &r); r.ErrorText != "" {
		p.t.Fatalf("%s: %s", url, r.ErrorText)
	}
}

// eval returns the value of an expression, which is a string; "" while there is none.
func (p *tab) eval(expression string) string {
	p.t.Helper()
	var r struct{ Result struct{ Value any } }
	p.do("Runtime.evaluate", map[string]any{"expression": expression}, &r)
	text, _ := r.Result.Value.(string)
	return text
}

// shows waits until an expression has a value.
func (p *tab) shows(expression, want string) {
	p.t.Helper()
	got := ""
	defer func() {
		if p.t.Failed() {
			p.t.Logf("%s is %q, want %q; the page: %.2000s", expression, got, want, p.eval("document.documentElement.outerHTML"))
		}
	}()
	poll.Until(p.t, hang, func() bool { got = p.eval(expression); return got == want })
}
