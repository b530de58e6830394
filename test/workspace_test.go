package test_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// userDir creates a directory of an ordinary user with these files.
func (h *host) userDir(name string, files map[string]string) string {
	h.t.Helper()
	dir := filepath.Join(h.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.t.Fatal(err)
	}
	for path, content := range files {
		h.put(dir, path, content)
	}
	h.owned(dir)
	return dir
}

// put writes a file of the ordinary user.
func (h *host) put(dir, path, content string) {
	h.t.Helper()
	p := filepath.Join(dir, path)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		h.t.Fatal(err)
	}
	h.owned(dir)
}

const user = 1000

// owned changes the owner of a tree to the ordinary user.
func (h *host) owned(dir string) {
	h.t.Helper()
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, user, user)
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// script runs a script in a sandbox with the directory as its workspace, and returns the run.
func (h *host) script(dir, script string, flags ...string) caisson.Run {
	h.t.Helper()
	return h.succeeds(append(append([]string{"-C", dir}, flags...), "shell", script+"\necho done")...)
}

// diff returns the output of caisson diff, by path.
func (h *host) diff(ref string) map[string]caisson.Change {
	h.t.Helper()
	var d caisson.Diff
	if err := json.Unmarshal([]byte(h.ok("diff", "-o", "json", ref)), &d); err != nil {
		h.t.Fatal(err)
	}
	all := map[string]caisson.Change{}
	for _, c := range d.Changes {
		all[c.Path] = c
	}
	return all
}

func (h *host) content(dir, path string) string {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, path))
	if err != nil {
		return "(" + err.(*fs.PathError).Err.Error() + ")"
	}
	return string(data)
}

// withoutTimes removes the times from the output of tree.
func withoutTimes(tree string) string { return treeTime.ReplaceAllString(tree, "") }

var treeTime = regexp.MustCompile(`\d{4}-\d\d-\d\d [\d:.]+ \+0000 UTC`)

const base = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n"

// TestPromise3Gate tests that changes of an agent to a directory stay in the layer until they are applied; that exactly
// the reviewed changes are then applied with the owner of the directory; that concurrent changes on the host are kept;
// and that everything can be undone.
func TestPromise3Gate(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	dir := h.userDir("project", map[string]string{
		"edit.txt": base, "gone.txt": "gone\n", "from.txt": strings.Repeat("moved\n", 20), "run.sh": "#!/bin/sh\n", "clash.txt": base, "merge.txt": base,
		"tree/leaf.txt": "leaf\n", "same.txt": "same\n", ".env": "KEY=hunter2\n", "src/keep.txt": "keep\n",
	})
	before := h.tree(dir)
	r := h.script(dir, `set -e
test ! -e .env; ! ls -A | grep -q env
sed -i 's/two/TWO/' edit.txt clash.txt merge.txt
rm gone.txt; mv from.txt to.txt; chmod 755 run.sh; rm -r tree; mkdir -p new/deep; echo new > new/deep/file.txt; ln -s ../src/keep.txt new/link
touch same.txt; cat same.txt > copy && cat copy > same.txt && rm copy`)
	if after := h.tree(dir); after != before {
		t.Errorf("the directory was\n%s\nand is\n%s", before, after)
	}
	if r.Workspace == "" || len(r.Result.Changes) == 0 || !strings.Contains(r.Result.Patch, "+TWO") {
		t.Errorf("the result has workspace %q, %d changes, patch %.300q", r.Workspace, len(r.Result.Changes), r.Result.Patch)
	}
	ws := shows[caisson.Workspace](h, "workspace", "show", "-o", "json", string(r.ID))
	if !slices.Equal(ws.Hidden, []string{".env"}) || ws.UID != user || ws.Kind != caisson.WorkspaceOverlay || ws.Mode != caisson.SyncSecure {
		t.Errorf("the workspace is %+v", ws)
	}
	// Meanwhile a user changes the directory.
	h.put(dir, "clash.txt", strings.Replace(base, "two", "zwei", 1))
	h.put(dir, "merge.txt", strings.Replace(base, "eight", "EIGHT", 1))
	h.put(dir, "hosts.txt", "host\n")
	d := h.diff(string(r.ID))
	got := map[string]string{}
	for p, c := range d {
		got[p] = c.Kind + " " + c.Verdict
	}
	want := map[string]string{
		"edit.txt": "modified pass", "gone.txt": "removed pass", "to.txt": "renamed pass", "run.sh": "mode ask", "clash.txt": "modified clash", "merge.txt": "modified pass",
		"tree": "removed pass", "tree/leaf.txt": "removed pass", "new": "added pass", "new/deep": "added pass", "new/deep/file.txt": "added pass", "new/link": "added pass",
	}
	for p, w := range want {
		if got[p] != w {
			t.Errorf("%s is %q, want %q", p, got[p], w)
		}
	}
	for p := range got {
		if want[p] == "" {
			t.Errorf("%s has not changed, and is %q", p, got[p])
		}
	}
	if d["to.txt"].OldPath != "from.txt" || !d["merge.txt"].Merge || !d["clash.txt"].HostChanged {
		t.Errorf("renamed %+v, merged %+v, clash %+v", d["to.txt"], d["merge.txt"], d["clash.txt"])
	}
	unapplied := withoutTimes(h.tree(dir))
	receipt := shows[caisson.SyncReceipt](h, "sync", "--auto", "-o", "json", string(r.ID))
	if receipt.Waiting != 2 || receipt.State != caisson.ReceiptApplied || receipt.Run != r.ID {
		t.Errorf("the receipt is %+v", receipt)
	}
	for p, w := range map[string]string{
		"edit.txt": strings.Replace(base, "two", "TWO", 1), "gone.txt": "(no such file or directory)", "from.txt": "(no such file or directory)",
		"to.txt": strings.Repeat("moved\n", 20), "clash.txt": strings.Replace(base, "two", "zwei", 1),
		"merge.txt": strings.Replace(strings.Replace(base, "two", "TWO", 1), "eight", "EIGHT", 1), "hosts.txt": "host\n", "tree/leaf.txt": "(no such file or directory)",
		"new/deep/file.txt": "new\n", "new/link": "keep\n", ".env": "KEY=hunter2\n", "same.txt": "same\n",
	} {
		if c := h.content(dir, p); c != w {
			t.Errorf("%s is %q, want %q", p, c, w)
		}
	}
	mode := func(p string) fs.FileMode {
		fi, err := os.Lstat(filepath.Join(dir, p))
		if err != nil {
			t.Fatal(err)
		}
		if st := fi.Sys().(*syscall.Stat_t); st.Uid != user || st.Gid != user {
			t.Errorf("%s is %d:%d's", p, st.Uid, st.Gid)
		}
		return fi.Mode()
	}
	if mode("edit.txt") != 0o644 || mode("new/deep/file.txt") != 0o644 || mode("run.sh") != 0o644 || mode("new/link")&fs.ModeSymlink == 0 || mode("new/deep") != fs.ModeDir|0o755 {
		t.Error("modes are wrong")
	}
	// Changes that need review require confirmation. Applied changes are not applied again.
	h.ok("sync", "--yes", string(r.ID))
	if mode("run.sh") != 0o755 {
		t.Error("what somebody said yes to was not applied")
	}
	if left := h.diff(string(r.ID)); len(left) != 1 || left["clash.txt"].Verdict != caisson.VerdictConflict {
		t.Errorf("left are %+v", left)
	}
	log := strings.Fields(h.ok("sync", "log", "-q"))
	if len(log) != 2 {
		t.Fatalf("the log is %q", log)
	}
	for _, id := range log { // Newest first.
		h.ok("sync", "undo", id)
	}
	if after := withoutTimes(h.tree(dir)); after != unapplied {
		t.Errorf("after undo the directory was\n%s\nand is\n%s", unapplied, after)
	}
	if r := h.run("sync", "undo", log[0]); r.code == 0 {
		t.Errorf("undone twice: %v", r)
	}
	events := h.ok("events", "--after", "0", "--for", "1s", "-o", "json")
	for _, want := range []string{"sync.applied", "sync.undone", "workspace.changed"} {
		if !strings.Contains(events, want) {
			t.Errorf("no event %s", want)
		}
	}
	if strings.Contains(events, "hunter2") {
		t.Error("a secret is in the events")
	}
	h.noSandboxes()
}

// TestPromise4HostileWorkspace tests that nothing dangerous to the host passes the gate, whatever its name.
func TestPromise4HostileWorkspace(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	dir := h.userDir("project", map[string]string{".git/config": "[core]\n", "src/a.txt": "a\n", "plain.txt": "plain\n"})
	r := h.script(dir, `
echo evil > .git/hooks-x; mkdir -p .git/hooks && printf '#!/bin/sh\n' > .git/hooks/pre-commit && chmod 755 .git/hooks/pre-commit; echo '[core] fsmonitor=evil' > .git/config
mkdir -p .GIT sub/.git/hooks .github/workflows .husky; echo x > .GIT/config; echo x > sub/.git/hooks/post-checkout; echo x > .github/workflows/ci.yml; echo x > .husky/pre-push
mkfifo fifo; ln -s /etc/passwd abs; ln -s ../../../etc/passwd out; ln -s src inside; ln -s inside/../../x sneaky
cp /bin/true setuid; chmod 4755 setuid; mknod dev c 1 3
for n in 'new\nline' 'esc\033[31m' 'rtl\342\200\256gpj.exe' 'bad\377'; do echo x > "$(printf "$n.")"; done; echo x > -rf; echo x > README; echo x > readme
truncate -s 50G sparse; echo 'AWS_KEY = "AKIAQ3EGRJXMN2W7ZB4K"' > leak.py; echo 'token = "ghp_016C7e5dIuwN8kVbXo3RZqLmTyHs4A2PfJc9" # gitleaks:allow' > leak2.py; echo '[allowlist]' > .gitleaks.toml
mkdir "$(printf 'd%.0s' $(seq 200))"; mv plain.txt fine.txt; echo fine > ok.txt
setfattr -n user.overlay.opaque -v y src 2>/dev/null; setfattr -n user.overlay.redirect -v /etc src 2>/dev/null; true`)
	before := h.tree(dir)
	d := h.diff(string(r.ID))
	auto := shows[caisson.SyncReceipt](h, "sync", "--auto", "-o", "json", string(r.ID))
	odd := map[string]bool{}
	for p, c := range d {
		for _, f := range c.Finding {
			if strings.Contains(f.Message, "AKIAQ3EGRJXMN2W7ZB4K") || strings.Contains(f.Message, "ghp_016C7e5d") {
				t.Errorf("the finding of %s has the secret: %q", p, f.Message)
			}
		}
		odd[p[:min(len(p), 3)]] = true
		name := strings.ToLower(p)
		bad := strings.HasPrefix(name, ".git/") || name == "sub/.git" || strings.HasPrefix(name, ".github/") || slices.Contains([]string{"fifo", "abs", "out", "setuid", "sparse", "leak.py", "leak2.py", ".husky/pre-push", "dev"}, p) ||
			strings.HasPrefix(p, "bad") || strings.HasPrefix(p, "new") || strings.HasPrefix(p, "esc") || strings.HasPrefix(p, "rtl")
		if bad && c.Verdict == caisson.VerdictPass {
			t.Errorf("%q passes: %+v", p, c)
		}
	}
	for _, p := range []string{"new", "esc", "rtl", "bad", "-rf", "lea"} {
		if !odd[p] {
			t.Errorf("the difference has no name that begins with %q", p)
		}
	}
	for _, e := range auto.Entries {
		if !slices.ContainsFunc([]string{"ok.txt", "fine.txt", "plain.txt", "inside", "ddd", ".github", ".gitleaks.toml", "sub"}, func(s string) bool { return strings.HasPrefix(e.Path, s) }) {
			t.Errorf("%q was applied by itself", e.Path)
		}
	}
	// Confirming everything does not apply them either.
	h.ok("sync", "--yes", string(r.ID))
	for _, p := range []string{".git/hooks/pre-commit", ".GIT/config", "sub/.git/hooks/post-checkout", "fifo", "abs", "out", "dev", "sparse"} {
		if _, err := os.Lstat(filepath.Join(dir, p)); err == nil {
			t.Errorf("%q has got to the host", p)
		}
	}
	if c := h.content(dir, ".git/config"); c != "[core]\n" {
		t.Errorf(".git/config is %q", c)
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "setuid"), &st); err == nil && st.Mode&0o7000 != 0 {
		t.Errorf("setuid has got to the host with mode %o", st.Mode)
	}
	if after := h.tree(dir); after == before {
		t.Error("nothing was applied")
	}
	// Names are printed on a terminal with escapes only.
	if out := h.ok("diff", "--names", string(r.ID)) + h.ok("diff", string(r.ID)) + h.ok("diff", "--stat", string(r.ID)); strings.ContainsAny(out, "\x1b\u202e") {
		t.Errorf("a name is shown as it is: %.500q", out)
	}
}

// TestWorkspaceModes tests that yolo mode applies changes that pass every check automatically, that direct mode mounts
// the directory itself, and that sandboxes without a run have workspaces, too.
func TestWorkspaceModes(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	files := map[string]string{
		"a.txt": "a\n", "b.sh": "b\n", "v/package.json": `{"version": "1", "scripts": {"test": "x"}}`, "s/package.json": `{"scripts": {"test": "x"}}`,
		"Makefile": "all:\n",
	}
	for _, name := range strings.Split("abcdefghij", "") {
		files["docs/"+name] = "file " + name + "\n"
	}
	dir := h.userDir("project", files)
	r := h.script(dir, `echo A > a.txt; chmod 755 b.sh; echo n > n.txt; echo '{"version": "2", "scripts": {"test": "x"}}' > v/package.json
echo '{"scripts": {"test": "y"}}' > s/package.json; printf '# comment\nall:\n' > Makefile; rm -rf docs; printf '\342\200\256\n' > t.go`, "--sync", "yolo")
	h.waitFor(func() bool {
		return h.content(dir, "a.txt") == "A\n" && h.content(dir, "n.txt") == "n\n" && strings.Contains(h.content(dir, "v/package.json"), `"2"`) &&
			strings.HasPrefix(h.content(dir, "Makefile"), "#")
	})
	if fi, err := os.Stat(filepath.Join(dir, "b.sh")); err != nil || fi.Mode().Perm() != 0o644 {
		t.Errorf("what a check asks about was applied by itself: %v, %v", fi, err)
	}
	left := h.diff(string(r.ID))
	for _, name := range []string{"b.sh", "s/package.json", "t.go", "docs/a", "docs/j"} {
		if left[name].Verdict != caisson.VerdictAsk {
			t.Errorf("%s is not asked about: %+v", name, left[name])
		}
	}
	if len(left) != 14 || h.content(dir, "docs/a") != "file a\n" || h.content(dir, "s/package.json") != files["s/package.json"] || h.content(dir, "t.go") == "\u202e\n" {
		t.Errorf("left are %+v", left)
	}
	// Removing most of the files requires confirmation with the command in the message.
	auto := h.run("sync", "--auto", string(r.ID))
	command := regexp.MustCompile(`run "caisson (sync --yes ws-[a-z0-9]+)"`).FindStringSubmatch(auto.stderr)
	if auto.code != 0 || command == nil || h.content(dir, "docs/a") != "file a\n" {
		t.Fatalf("%v", auto)
	}
	h.ok(append(strings.Fields(command[1]), "--only", "docs")...)
	if _, err := os.Stat(filepath.Join(dir, "docs")); err == nil || h.content(dir, "s/package.json") != files["s/package.json"] {
		t.Errorf("after %s: %v", command[1], err)
	}
	h.script(dir, "echo direct > d.txt", "--workspace-kind", "direct")
	if c := h.content(dir, "d.txt"); c != "direct\n" {
		t.Errorf("direct: %q", c)
	}
	r = h.script(dir, "echo copy > c.txt; test -e a.txt", "--workspace-kind", "copy")
	if c := h.content(dir, "c.txt"); !strings.HasPrefix(c, "(") {
		t.Errorf("a copy has got back: %q", c)
	}
	// A running sandbox: its changes are visible at once, and are reset when it is stopped.
	h.put(dir, "prod.tfvars", "x\n")
	h.put(dir, "deploy", "-----BEGIN PRIVATE KEY-----\n"+strings.Repeat("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ\n", 4)+"-----END PRIVATE KEY-----\n")
	if made := h.run("sandbox", "create", "--name", "web", "--workspace", dir); made.code != 0 || !strings.Contains(made.stderr, "may contain secrets: prod.tfvars") {
		t.Errorf("what is known to be suspect at the start: %v", made)
	}
	h.sh("web", "cd /workspace && echo w > w.txt && test ! -e .env")
	h.waitFor(func() bool { return !strings.Contains(h.ok("workspace", "show", "web"), "not yet") })
	if shown := h.ok("workspace", "show", "web"); !strings.Contains(shown, "prod.tfvars: variables of Terraform") || !strings.Contains(shown, "deploy: line 1 looks like a secret: private-key") {
		t.Errorf("what may contain secrets is not shown:\n%s", shown)
	}
	h.put(dir, ".env", "KEY=hunter2\n")
	if out := h.sh("web", "cd /workspace && ls -A; cat .env 2>&1 || true"); strings.Contains(out, ".env\n") || strings.Contains(out, "hunter2") {
		t.Errorf("a secret that appeared later is seen: %q", out)
	}
	if d := h.diff("web"); len(d) != 1 || d["w.txt"].Kind != caisson.ChangeAdded {
		t.Errorf("the sandbox has changed %+v", d)
	}
	h.fails(4, "running", "sync", "--reset", "--yes", "web")
	h.ok("sandbox", "stop", "web")
	h.ok("sandbox", "start", "web")
	if out := h.sh("web", "cat /workspace/w.txt"); strings.TrimSpace(out) != "w" {
		t.Errorf("after a stop: %q", out)
	}
	h.ok("sandbox", "stop", "web")
	h.ok("sync", "--reset", "--yes", "web")
	if d := h.diff("web"); len(d) != 0 {
		t.Errorf("after a reset: %+v", d)
	}
	h.ok("sandbox", "rm", "web")
	// A directory that contains Caisson's data cannot be a workspace.
	if r := h.run("run", "-C", h.dir, "shell", "true"); r.code == 0 || !strings.Contains(r.stderr, "Caisson") {
		t.Errorf("the data directory: %v", r)
	}
}

// TestWorkspaceCommands tests that changes that the administrator's commands reject are not applied, that changes by
// these commands are discarded, and that nothing of them is left, even after the daemon was killed.
func TestWorkspaceCommands(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	script := `test ! -e .env || exit 8
echo trace > trace; case "$(cat word.txt)" in
good) test -e n/new.txt && test ! -e gone.txt && test "$(cat host.txt)" = here;;
hang) sleep 600;;
*) echo "bad: $(cat word.txt)" >&2; exit 3;; esac`
	data, err := json.Marshal([]map[string]any{
		{"name": "first", "command": []string{"grep", "-c", "", "word.txt"}}, {"name": "word", "command": []string{"sh", "-c", script}, "time": "3s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	h.configure("idleExit: 10m", `workspaces: {commands: `+string(data)+`}`)
	d := h.serve()
	dir := h.userDir("project", map[string]string{"word.txt": "start\n", "gone.txt": "x\n", ".env": "KEY=hunter2\n"})
	h.ok("sandbox", "create", "--name", "dev", "--workspace", dir)
	h.sh("dev", "cd /workspace && rm gone.txt && mkdir n && echo new > n/new.txt && echo 'evil' > word.txt")
	h.put(dir, "host.txt", "here\n")
	before := h.tree(dir)
	h.fails(5, "the check word exited with 3; it ended with: bad: evil", "sync", "--auto", "dev")
	h.sh("dev", "echo hang > /workspace/word.txt")
	h.fails(5, "time limit", "sync", "--yes", "dev")
	if after := h.tree(dir); after != before {
		t.Errorf("the directory was\n%s\nand is\n%s", before, after)
	}
	if c := h.diff("dev")["word.txt"]; len(c.Finding) != 1 || c.Finding[0].Check != "command" || c.Verdict != caisson.VerdictPass {
		t.Errorf("the next look: %+v", c)
	}
	if out := h.ok("sandbox", "ls", "-q"); strings.Count(out, "\n") != 0 {
		t.Errorf("sandboxes are left: %q", out)
	}
	// The daemon dies while a command runs.
	ended := make(chan struct{})
	go func() { defer close(ended); h.run("sync", "--auto", "dev") }()
	h.waitFor(func() bool { return strings.Contains(h.ok("sandbox", "ls", "-o", "json"), `"caisson/check"`) })
	d.kill()
	<-ended
	h.serve()
	if out := h.ok("sandbox", "ls", "-o", "json"); strings.Contains(out, "caisson/check") || strings.Count(out, `"id"`) != 1 {
		t.Errorf("sandboxes are left: %s", out)
	}
	if list, err := os.ReadDir(filepath.Join(h.data, "workspaces")); err != nil || len(list) != 1 {
		t.Errorf("%d directories of workspaces are left: %v", len(list), err)
	}
	h.sh("dev", "echo good > /workspace/word.txt")
	receipt := shows[caisson.SyncReceipt](h, "sync", "--auto", "dev")
	if !slices.Contains(receipt.Checks, "command first") || !slices.Contains(receipt.Checks, "command word") {
		t.Errorf("the receipt's checks are %q", receipt.Checks)
	}
	if c := h.content(dir, "word.txt") + h.content(dir, "n/new.txt") + h.content(dir, "trace"); c != "good\nnew\n(no such file or directory)" {
		t.Errorf("the directory has %q", c)
	}
	h.ok("sandbox", "rm", "dev")
}

// TestWorkspaceCopy tests that a sandbox with a copy has the files of the time when it started, and that its changes
// are merged with the host's.
func TestWorkspaceCopy(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	dir := h.userDir("project", map[string]string{"edit.txt": base, "stays.txt": "old\n", ".env": "KEY=hunter2\n", "d/f.txt": "f\n"})
	h.ok("sandbox", "create", "--name", "dev", "--workspace", dir, "--workspace-kind", "copy")
	h.put(dir, "edit.txt", strings.Replace(base, "eight", "EIGHT", 1))
	h.put(dir, "stays.txt", "host\n")
	h.put(dir, "late.txt", "late\n")
	if out := h.sh("dev", "cd /workspace && cat stays.txt && ls -A"); out != "old\nd\nedit.txt\nstays.txt" {
		t.Errorf("the sandbox sees %q", out)
	}
	before := withoutTimes(h.tree(dir))
	h.sh("dev", "cd /workspace && sed -i s/two/TWO/ edit.txt && echo new > new.txt && rm -r d && chown 0:0 stays.txt")
	if out := h.ok("sandbox", "pause", "dev") + h.ok("sandbox", "resume", "dev") + h.sh("dev", "cat /workspace/new.txt"); !strings.HasSuffix(out, "new") {
		t.Errorf("after a pause: %q", out)
	}
	receipt := shows[caisson.SyncReceipt](h, "sync", "--auto", "dev")
	if c := h.content(dir, "edit.txt"); c != strings.NewReplacer("two", "TWO", "eight", "EIGHT").Replace(base) {
		t.Errorf("merged into %q", c)
	}
	if c := h.content(dir, "new.txt") + h.content(dir, "stays.txt") + h.content(dir, "d/f.txt"); c != "new\nhost\n(no such file or directory)" {
		t.Errorf("the directory has %q", c)
	}
	h.ok("sync", "undo", string(receipt.ID))
	if after := withoutTimes(h.tree(dir)); after != before {
		t.Errorf("after undo the directory was\n%s\nand is\n%s", before, after)
	}
	h.ok("sync", "--auto", "dev")
	h.ok("sandbox", "stop", "dev")
	h.ok("sync", "--reset", "--yes", "dev")
	h.ok("sandbox", "start", "dev")
	if out := h.sh("dev", "cd /workspace && cat stays.txt d/f.txt; test ! -e new.txt"); out != "old\nf" {
		t.Errorf("after a reset the sandbox sees %q", out)
	}
	if d := h.diff("dev"); len(d) != 0 {
		t.Errorf("after a reset: %+v", d)
	}
	h.ok("sandbox", "rm", "dev")
}
