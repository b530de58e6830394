package test_test

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/forge/forgetest"
)

// See testdata/data-old-README.md.
const (
	oldArchive = "testdata/data-old.tar.gz"
	oldReads   = "testdata/data-old.jsonl"
	oldKey     = "sk-e2e-key-of-the-old-data" // the credential KEY_OPENAI
)

// An oldRead is the output of a command when the data was created. The first two are not commands: the path of the data
// directory, and the head of its audit record.
type oldRead struct {
	Command string          `json:"command"`
	Output  json.RawMessage `json:"output"`
}

// oldConfig returns the configuration of the data, with such long retention times that nothing expires.
func (h *modelHost) oldConfig(u *upstream) []string {
	return append(h.modelConfig([]*upstream{u}, []string{priced("m", "openai", "gpt-test-1")}),
		"eventRetention: 36500d", "workspaces: {keep: 36500d}", "relay: {keep: 36500d}",
		"runs: {keep: 36500d, sessionIdle: 1s, sessionFiles: 2s}", "gateway: {listen: '127.0.0.1:0', runTokenKeys: [RUN_KEY]}")
}

// TestOldData tests that a data directory of an earlier build is read as that build read it, that its audit record is
// intact and its credentials can be decrypted, that its budgets continue, and that its sandboxes, snapshots, volumes
// and sessions can be used. With CAISSON_TEST_OLD_DATA=1 the current build first creates another data directory.
func TestOldData(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, caisson.ProviderOpenAI, billedScript, false, nil)
	u.key = oldKey
	if os.Getenv("CAISSON_TEST_OLD_DATA") != "" {
		makeOldData(t, u)
		u.Reset()
	}
	data, err := os.ReadFile(oldReads)
	if err != nil {
		t.Fatal(err)
	}
	var dir, head string
	var reads []oldRead
	for dec := json.NewDecoder(bytes.NewReader(data)); ; {
		var r oldRead
		if err := dec.Decode(&r); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		reads = append(reads, r)
	}
	if err := errors.Join(json.Unmarshal(reads[0].Output, &dir), json.Unmarshal(reads[1].Output, &head)); err != nil {
		t.Fatal(err)
	}
	h := withCaller(newHost(t))
	was := h.unpackOldData(dir)
	h.configure(h.oldConfig(u)...)
	h.serve()
	h.removeTheirs()
	for _, r := range reads[2:] {
		if diff := missing("", decoded(t, was.Replace(string(r.Output))), decoded(t, string(h.reads(r.Command)))); diff != "" {
			t.Errorf("caisson %s:%s", r.Command, diff)
		}
	}
	if report := shows[caisson.AuditReport](h.host, "audit", "verify", "--head", head); report.Problem != "" || report.Events < 50 {
		t.Errorf("the record is not whole: %+v", report)
	}
	h.useOldData(u)
}

// useOldData continues to use the data.
func (h *modelHost) useOldData(u *upstream) {
	want := func(what, got, want string) {
		h.t.Helper()
		if got != want {
			h.t.Errorf("%s has %q, want %q", what, got, want)
		}
	}
	h.ok("sandbox", "start", "old")
	want("the stopped sandbox", h.sh("old", "cat /root/kept.txt /etc/built"), "kept\nbuilt")
	h.ok("cp", h.caller, "old:/caller")
	a := h.call("old", chat("2", "m", "Pay for this."))
	if calls := u.Calls(); a.Status != http.StatusOK || len(calls) != 1 || calls[0].Header.Get("Authorization") != "Bearer "+oldKey {
		h.t.Errorf("a call is answered %d %s, and the provider got %+v", a.Status, a.Body, calls)
	}
	for _, b := range shows[[]caisson.Budget](h.host, "budget", "ls") {
		twice := caisson.Amount{USD: 2 * billed.USD, Tokens: 2 * billed.Tokens, Calls: 2}
		if strings.HasPrefix(b.Key, "account/") && b.Used != twice {
			h.t.Errorf("after another call the budget is %+v", b)
		}
	}
	h.ok("sandbox", "resume", "paused")
	want("the paused sandbox", h.sh("paused", "cat /root/kept.txt"), "paused")
	id := h.ok("sandbox", "create", "--snapshot", "snap", "--volume", "notes:/srv/notes")
	want("the snapshot", h.sh(id, "cat /root/kept.txt /srv/notes/dir/notes.txt"), "kept\none")
	r := h.succeeds("--session", "s1", "--user", "ada", "mine", "again")
	if a := r.Result.Answer; !strings.HasPrefix(a, "hello\n") || !strings.HasSuffix(a, "again\n") {
		h.t.Errorf("the session's run has %q", a)
	}
}

// removeTheirs removes the sandbox of another account before the host is closed.
func (h *host) removeTheirs() {
	h.t.Cleanup(func() { h.ok("--account", "team-b", "sandbox", "rm", "theirs") })
}

func decoded(t *testing.T, data string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	return v
}

// missing describes the values of was that now lacks. Objects of now may have more fields. The time of a count is not
// compared.
func missing(path string, was, now any) (diff string) {
	switch was := was.(type) {
	case map[string]any:
		if in, ok := now.(map[string]any); ok {
			for _, k := range slices.Sorted(maps.Keys(was)) {
				if k != "countedAt" {
					diff += missing(path+"."+k, was[k], in[k])
				}
			}
			return diff
		}
	case []any:
		if in, ok := now.([]any); ok && len(in) == len(was) {
			for i, v := range was {
				diff += missing(fmt.Sprintf("%s[%d]", path, i), v, in[i])
			}
			return diff
		}
	}
	if !reflect.DeepEqual(was, now) {
		diff = fmt.Sprintf("\n\t%s was %v and is %v", path, was, now)
	}
	return diff
}

// reads returns the output of a command: JSON, lines of JSON as a list, or text as a string.
func (h *host) reads(command string) json.RawMessage {
	h.t.Helper()
	name, _, _ := strings.Cut(command, " ")
	lines := name == "attach" || name == "events"
	form := map[bool]string{true: "jsonl", false: "json"}[lines]
	r := h.run(append(strings.Fields(command), "-o", form)...)
	if r.code != 0 && name != "attach" { // The exit code of attach is the run's.
		h.t.Fatal(r)
	}
	if lines {
		return json.RawMessage("[" + strings.ReplaceAll(strings.TrimSpace(r.stdout), "\n", ",") + "]")
	}
	if out := json.RawMessage(r.stdout); json.Valid(out) {
		return out
	}
	text, err := json.Marshal(r.stdout)
	if err != nil {
		h.t.Fatal(err)
	}
	return text
}

// unpackOldData unpacks the archive, whose data directory was dir, into the host's data directory. It adapts values
// that depend on the machine and the time: the instance ID, which cgroups contain, the paths of layers, the time
// when a run of another machine ends, and the time when a workspace without changes left has ended, which is kept for a
// day. It returns a replacer that makes the same changes in recorded output.
func (h *host) unpackOldData(dir string) *strings.Replacer {
	h.t.Helper()
	must := func(err error) {
		h.t.Helper()
		if err != nil {
			h.t.Fatal(err)
		}
	}
	archive, err := os.Open(oldArchive) // Opened here, so that a cached result depends on it.
	must(err)
	defer archive.Close()
	h.tar(archive, "-xpzf", "-")
	instance := filepath.Join(h.data, "instance")
	id, err := os.ReadFile(instance)
	must(err)
	_, err = caisson.ParseID(caisson.InstancePrefix, string(id))
	must(errors.Join(err, os.WriteFile(instance, []byte(caisson.NewID(caisson.InstancePrefix)), 0o600)))
	db, err := sql.Open("sqlite", "file:"+filepath.Join(h.data, "caisson.db"))
	must(err)
	defer db.Close()
	for _, table := range []string{"sandbox", "snapshot", "template"} {
		_, err := db.Exec(`UPDATE `+table+` SET doc = replace(doc, ?, ?)`, dir+"/", h.data+"/")
		must(err)
	}
	var ended string
	ends := time.Now().Add(24 * time.Hour).UTC().Format(time.RFC3339Nano)
	must(db.QueryRow(`SELECT json_extract(doc, '$.expiresAt') FROM gateway_run`).Scan(&ended))
	_, err = db.Exec(`UPDATE gateway_run SET doc = json_set(doc, '$.expiresAt', ?)`, ends)
	must(err)
	var settled string
	now := time.Now().UTC().Format(time.RFC3339Nano)
	must(db.QueryRow(`SELECT json_extract(doc, '$.endedAt') FROM workspace WHERE json_extract(doc, '$.state') = 'settled'`).Scan(&settled))
	_, err = db.Exec(`UPDATE workspace SET doc = json_set(doc, '$.endedAt', ?) WHERE json_extract(doc, '$.state') = 'settled'`, now)
	must(err)
	return strings.NewReplacer(dir+"/images/", h.data+"/images/", ended, ends, settled, now)
}

// tar packs or unpacks the data directory.
func (h *host) tar(stdin io.Reader, args ...string) {
	h.t.Helper()
	args = append([]string{"-C", h.dir, "--numeric-owner", "--xattrs", "--xattrs-include=*"}, args...)
	cmd := exec.Command("tar", args...)
	cmd.Stdin = stdin
	if out, err := cmd.CombinedOutput(); err != nil {
		h.t.Fatalf("tar %v: %v\n%s", args, err, out)
	}
}

// makeOldData lets the current build create a data directory with objects of each kind. It writes the archive and the
// output of commands.
func makeOldData(t *testing.T, u *upstream) {
	h := newModelHost(t, []*upstream{u}, priced("m", "openai", "gpt-test-1"))
	h.credential("set", "RUN_KEY", newKey())
	h.endDaemon()
	h.configure(h.oldConfig(u)...)
	d := h.serve()
	h.ok("budget", "set", "--usd", "100")
	h.ok("--account", "team-b", "token", "create", "other", "--ttl", "36500d")
	h.ok("budget", "set", "--calls", "7", "--per", "month", "team-b")
	h.ok("model", "import-prices", "--source", "ours", h.write("prices.json",
		`{"x": {"mode": "chat", "litellm_provider": "y", "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06}}`))
	h.ok("token", "create", "ci")
	h.credential("set", "ROTATED", newKey())
	h.credential("rotate", "ROTATED", newKey())
	h.credential("set", "GONE", newKey())
	h.ok("credential", "rm", "GONE")
	h.ok("gateway", "run", "put", "run-42", "--model", "m", "--usd", "2", "--session", "se-1", "--agent", "far", "--user", "ada",
		"--ttl", "365d")

	h.write("rootfs/etc/motd", "An image.\n")
	h.ok("image", "pull", "dir:"+filepath.Join(h.dir, "rootfs"))
	h.ok("template", "put", h.write("built.yaml", `name: built
image: host
setup: [{run: [sh, -c, "echo built > /etc/built"]}]
labels: {of: old}
`))
	h.ok("template", "build", "built")
	h.ok("sandbox", "create", "--name", "old", "--model", "m", "--budget", "20", "--label", "kind=old",
		"--allow", "example.com:443", "built")
	h.sh("old", "echo kept > /root/kept.txt")
	h.ok("sandbox", "snapshot", "--files-only", "--name", "snap", "old")
	h.ok("cp", h.caller, "old:/caller")
	if a := h.call("old", chat("1", "m", "Pay for this.")); a.Status != http.StatusOK {
		t.Fatal(a)
	}
	h.sh("old", "rm /caller") // The file is large.
	h.ok("policy", "set", "old", "--allow", "npm", "--deny", "10.0.0.0/8")
	h.ok("sandbox", "stop", "old")
	h.ok("--account", "team-b", "sandbox", "create", "--name", "theirs", "--no-start", "host")
	h.removeTheirs()
	h.ok("sandbox", "create", "--name", "gone", "--volume", "notes:/srv/notes", "host")
	h.sh("gone", "mkdir /srv/notes/dir; echo one > /srv/notes/dir/notes.txt")
	h.ok("sandbox", "rm", "gone")
	h.ok("sandbox", "create", "--name", "paused", "host")
	h.sh("paused", "echo paused > /root/kept.txt")
	h.ok("sandbox", "pause", "paused")

	h.ok("agent", "add", h.write("agent.yaml", `id: mine
name: Mine
image: host
driver: exec
command: [sh, -c, 'echo "$0" >> said; cat said; echo aside >&2', '{prompt}']
limits: {time: 5m, cost: 0.50}
`))
	h.succeeds("--session", "s1", "--user", "ada", "-l", "of=old", "mine", "hello")
	h.wantError(h.does("--timeout", "1s", "shell", "sleep 100"), "timeout", "")
	dir := h.userDir("project", map[string]string{"edit.txt": base, ".env": "KEY=hunter2\n"})
	applied := h.script(dir, "sed -i s/two/TWO/ edit.txt; echo new > new.txt")
	h.ok("sync", "--auto", string(applied.ID))
	h.script(dir, "echo more > more.txt")
	f := forgetest.New(t, forgetest.Options{Token: forgeToken, Kind: caisson.ForgeGitHub})
	h.addForge(f)
	h.succeeds("--repo", "app", "--pr", "--title", "Mend it", "shell",
		"cd /workspace; echo mended > fix.txt; git add fix.txt; git commit -q -m 'mend it'; git push 2>&1; echo done")
	h.waitFor(func() bool {
		return !slices.ContainsFunc(shows[[]caisson.Sandbox](h.host, "sandbox", "ls"), func(sb caisson.Sandbox) bool {
			return sb.State != caisson.Stopped && sb.Name != "paused"
		})
	})
	d.end()

	// Record the state that a new daemon reads.
	d = h.serve()
	commands := []string{
		"sandbox ls", "--account team-b sandbox ls", "sandbox show old", "sandbox show paused", "policy show old",
		"snapshot ls", "snapshot show snap", "template show built", "credential ls", "token ls", "--account team-b token ls",
		"agent show mine", "runs ls", "session ls", "workspace ls", "sync log", "repo ls", "repo show app", "relay ls",
		"volume show notes", "budget ls", "--account team-b budget ls", "model prices", "gateway run ls",
		"usage --by total", "usage --by model", "usage --calls --since 2000-01-01", "usage --receipts --since 2000-01-01",
	}
	for _, r := range shows[[]caisson.Run](h.host, "runs", "ls") {
		for _, c := range []string{"runs show", "attach", "logs", "logs --stream stderr"} {
			commands = append(commands, c+" "+string(r.ID))
		}
	}
	for kind, list := range map[string]string{"workspace show": "workspace ls", "sync show": "sync log", "relay show": "relay ls"} {
		for _, of := range shows[[]struct{ ID string }](h.host, strings.Fields(list)...) {
			commands = append(commands, kind+" "+of.ID)
		}
	}
	events := strings.Count(h.ok("events", "--after", "0", "--for", "1s", "-o", "jsonl"), "\n") + 1
	commands = append(commands, fmt.Sprintf("events --after 0 -n %d", events))
	var reads bytes.Buffer
	enc := json.NewEncoder(&reads)
	add := func(command string, output any) {
		data, err := json.Marshal(output)
		if err := errors.Join(err, enc.Encode(oldRead{command, data})); err != nil {
			t.Fatal(err)
		}
	}
	add("data directory", h.data)
	add("audit head", h.ok("audit", "head"))
	for _, command := range commands {
		add(command, h.reads(command))
	}
	d.end()
	if err := os.WriteFile(oldReads, reads.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	archive, err := filepath.Abs(oldArchive)
	if err != nil {
		t.Fatal(err)
	}
	h.tar(nil, "--sort=name", "--exclude=d/tools", "--exclude=d/programs", "--exclude=d/*.log", "--exclude=d/*.sock",
		"--exclude=etc/ssl", "--exclude=etc/alternatives", "-czf", archive, "d")
	h.serve()
}
