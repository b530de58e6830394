package test_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestPromise2CopiedWorkspace tests that a run that works on a copy does not get hidden files, neither from this
// machine nor over the network, even if its client has uploaded them. Omitted files are listed.
func TestPromise2CopiedWorkspace(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	token, listener := h.ok("token", "create", "-q", "ci"), freeAddress(t)
	h.configLine("listen: " + listener)
	h.configLine("workspaces: {hide: [/local.yaml]}")
	h.ok("agent", "ls") // Starts the daemon.
	files := map[string]string{
		".env": "hunter2", ".env.example": "KEY=", "public.pem": "P", "sub/key.pem": "hunter2", ".ssh/id": "hunter2", "local.yaml": "hunter2", "sub/local.yaml": "L",
	}
	dir := h.userDir("copied", files)
	const look = "find . -type f | sort; grep -rl hunter2 . || true"
	const want = "./.env.example\n./public.pem\n./sub/local.yaml\n"
	hidden := []string{".env", ".ssh", "local.yaml", "sub/key.pem"}
	remote := *h
	remote.env = []string{"PATH=/usr/bin:/bin", "HOME=" + h.dir, "CAISSON_CONFIG=" + h.configFile(), "CAISSON_HOST=http://" + listener, "CAISSON_TOKEN=" + token}
	copied := []string{"-C", dir, "--workspace-kind", "copy", "--show-hidden", "public.pem", "shell", look}
	for name, from := range map[string]*host{"here": h, "over the network": &remote} {
		said := from.run(append([]string{"run", "-o", "json"}, copied...)...)
		var r caisson.Run
		if err := json.Unmarshal([]byte(said.stdout), &r); err != nil || r.Result == nil {
			t.Fatalf("%s: %v", name, said)
		}
		if !strings.Contains(said.stderr, "hidden from the agent: .env .ssh local.yaml sub/key.pem;") {
			t.Errorf("%s: the client says %q", name, said.stderr)
		}
		if slices.Sort(r.Hidden); r.Result.Answer != want || !slices.Equal(r.Hidden, hidden) || r.HiddenCount != len(hidden) {
			t.Errorf("%s: the agent sees\n%s\nhidden are %q", name, r.Result.Answer, r.Hidden)
		}
	}

	// A client that hides nothing.
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	write := func(name string, data []byte) {
		part, err := form.CreateFormField(name)
		if err == nil {
			_, err = part.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ask, err := json.Marshal(caisson.RunRequest{Agent: "shell", Prompt: look, Show: []string{"public.pem"}})
	if err != nil {
		t.Fatal(err)
	}
	write("request", ask)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, content := range files {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))})
		if err == nil {
			_, err = io.WriteString(w, content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	write("workspace", archive.Bytes())
	if err := form.Close(); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+listener+"/api/v1/runs/upload", &body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", form.FormDataContentType())
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var r caisson.Run
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	r = h.ended(r.ID)
	if slices.Sort(r.Hidden); r.Result == nil || r.Result.Answer != want || !slices.Equal(r.Hidden, hidden) {
		t.Errorf("the agent sees %+v, hidden are %q", r.Result, r.Hidden)
	}
	if shown := h.ok("runs", "show", string(r.ID)); !strings.Contains(shown, "sub/key.pem") {
		t.Errorf("runs show says\n%s", shown)
	}
}
