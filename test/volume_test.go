package test_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/coder/sample"
	"github.com/caisson-dev/caisson/job/forge/forgetest"
)

// volume returns a volume as "volume show" prints it.
func (h *host) volume(name string) caisson.Volume {
	h.t.Helper()
	return shows[caisson.Volume](h, "volume", "show", name)
}

// TestVolumes tests that files in a volume are available to later runs and sandboxes, one after the other, and that
// stopping, pausing and other users inside change nothing.
func TestVolumes(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	first := h.succeeds("--volume", "notes", "shell", "set -e; pwd; mkdir dir; echo one > dir/notes.txt; echo done")
	if first.Workspace != "" || changed(first, "dir/notes.txt") != "added" {
		t.Errorf("of a volume the run has workspace %q and the changes %+v", first.Workspace, first.Result.Changes)
	}
	second := h.succeeds("--volume", "notes", "shell", "cat dir/notes.txt; echo two >> dir/notes.txt; echo done")
	if !strings.HasPrefix(second.Result.Answer, "one\n") {
		t.Errorf("the next run finds %q", second.Result.Answer)
	}
	h.waitFor(func() bool { return h.volume("notes").Sandbox == "" })
	id := h.ok("sandbox", "create", "--name", "a", "--volume", "notes:/srv/notes")
	if got := h.sh("a", "cat /srv/notes/dir/notes.txt; echo three >> /srv/notes/dir/notes.txt"); got != "one\ntwo" {
		t.Errorf("a sandbox finds %q", got)
	}
	if v := h.show("a").Spec.Volume; v == nil || v.Name != "notes" || v.Target != "/srv/notes" {
		t.Errorf("the sandbox has %+v", v)
	}

	// A conflict names the sandbox to which the volume is attached.
	h.fails(4, id, "sandbox", "create", "--name", "b", "--volume", "notes")
	h.fails(4, id, "volume", "rm", "notes")
	if r := h.run("run", "--volume", "notes", "shell", "cat dir/notes.txt"); r.code == 0 || !strings.Contains(r.stderr, id) {
		t.Errorf("a run in a volume that a sandbox has: %v", r)
	}
	if v := h.volume("notes"); string(v.Sandbox) != id || v.Files != 2 || v.Bytes == 0 || v.UsedAt.IsZero() {
		t.Errorf("the volume is %+v", v)
	}
	if list := h.ok("sandbox", "ls", "-q"); list != id {
		t.Errorf("there are the sandboxes %q", list)
	}

	// Every user inside can create and own files in it, and its owner there can give directories to other users.
	h.ok("exec", "-u", "1000:1000", "a", "--", "sh", "-c", "echo mine > /srv/notes/users && rm /srv/notes/users")
	h.sh("a", "mkdir /srv/notes/home && chown 1000:1000 /srv/notes/home && chmod 700 /srv/notes/home")
	own := h.ok("exec", "-u", "1000:1000", "a", "--", "sh", "-c", "cd /srv/notes/home && echo mine > file && stat -c %u:%g file . && cat ../dir/notes.txt")
	if own != "1000:1000\n1000:1000\none\ntwo\nthree" {
		t.Errorf("the user 1000 finds %q", own)
	}

	h.ok("sandbox", "stop", "a")
	h.fails(4, id, "sandbox", "create", "--volume", "notes")
	h.ok("sandbox", "start", "a")
	h.sh("a", "(exec 3>> /srv/notes/log; while :; do echo tick >&3; sleep 0.1; done) > /dev/null 2>&1 &")
	h.waitFor(func() bool { return h.sh("a", "test -s /srv/notes/log && echo yes || echo no") == "yes" })
	h.fails(4, "volume", "sandbox", "fork", "a")
	h.fails(4, "files", "sandbox", "snapshot", "a")
	h.ok("sandbox", "snapshot", "--files-only", "--name", "files", "a")
	h.ok("sandbox", "create", "--name", "copy", "--snapshot", "files")
	if got := h.sh("copy", "ls -A /srv/notes 2>/dev/null || true"); got != "" || h.show("copy").Spec.Volume != nil {
		t.Errorf("what was made of a snapshot has %q of the volume", got)
	}
	h.ok("sandbox", "rm", "copy")

	// The sandbox of a session keeps the volume attached while it exists, and the session continues in it.
	h.ok("sandbox", "rm", "a")
	s := h.succeeds("--session", "s", "--volume", "notes", "shell", "stat -c %u home/file; echo four >> dir/notes.txt; echo done")
	if !strings.HasPrefix(s.Result.Answer, "1000\n") {
		t.Errorf("the session finds %q", s.Result.Answer)
	}
	if s2 := h.succeeds("--session", "s", "shell", "tail -n 1 dir/notes.txt"); s2.Result.Answer != "four\n" {
		t.Errorf("the session goes on with %q", s2.Result.Answer)
	}
	h.ok("session", "rm", string(s.Session))
	h.noSandboxes()
	h.waitFor(func() bool { return h.volume("notes").Sandbox == "" })
	h.ok("volume", "rm", "notes")
	h.fails(3, "no volume", "volume", "show", "notes")
	if got := h.succeeds("--volume", "notes", "shell", "ls -A; echo done").Result.Answer; got != "done\n" {
		t.Errorf("in a new volume of that name is %q", got)
	}
}

// TestVolumesOfAccounts tests that an account can access neither the volumes of another one nor their contents, and
// that it has its own volumes over the network with a token.
func TestVolumesOfAccounts(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	token, listener := h.ok("token", "create", "-q", "ci", "--account", "team-b"), freeAddress(t)
	h.configLine("listen: " + listener)
	h.ok("sandbox", "create", "--name", "a", "--volume", "data")
	h.sh("a", "echo secret > /workspace/file")
	v := h.volume("data")
	h.ok("sandbox", "rm", "a")
	remote := *h
	remote.env = []string{"PATH=/usr/bin:/bin", "HOME=" + h.dir, "CAISSON_CONFIG=" + h.configFile(), "CAISSON_HOST=http://" + listener, "CAISSON_TOKEN=" + token}
	if list := remote.ok("volume", "ls", "-q"); list != "" {
		t.Errorf("another account sees %q", list)
	}
	for _, ref := range []string{"data", string(v.ID)} {
		remote.fails(3, "no volume", "volume", "show", ref)
		remote.fails(3, "no volume", "volume", "rm", ref)
	}
	if r := remote.run("sandbox", "create", "--volume", string(v.ID)); r.code == 0 {
		t.Errorf("another account has the volume: %v", r)
	}
	remote.ok("sandbox", "create", "--name", "b", "--volume", "data")
	if got := remote.sh("b", "ls -A /workspace; echo theirs > /workspace/file"); got != "" {
		t.Errorf("a volume of the same name has %q", got)
	}
	if theirs := remote.volume("data"); theirs.ID == v.ID || theirs.Account != "team-b" {
		t.Errorf("their volume is %+v", theirs)
	}
	if r := remote.succeeds("--volume", "runs", "shell", "echo run > run.txt; ls"); r.Result.Answer != "run.txt\n" {
		t.Errorf("a run over the network: %q", r.Result.Answer)
	}
	remote.ok("sandbox", "rm", "b")
	h.ok("sandbox", "create", "--name", "a", "--volume", "data")
	if got := h.sh("a", "cat /workspace/file"); got != "secret" {
		t.Errorf("the volume has %q", got)
	}
}

// TestPromise7Volumes tests that after a daemon was killed each volume is attached to the same sandbox as before, or to
// none, and that its contents are intact.
func TestPromise7Volumes(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve()
	id := h.ok("sandbox", "create", "--name", "a", "--volume", "data")
	h.sh("a", "echo one > /workspace/file; sync")
	d.kill()
	d = h.serve()
	h.fails(4, id, "sandbox", "create", "--volume", "data")
	h.fails(4, id, "volume", "rm", "data")
	if got := h.sh("a", "cat /workspace/file; echo two >> /workspace/file"); got != "one" {
		t.Errorf("after the daemon's end the sandbox finds %q", got)
	}
	h.ok("sandbox", "rm", "a")
	h.waitFor(func() bool { return h.volume("data").Sandbox == "" })

	for _, verb := range []string{"create", "rm"} {
		for delay := range 3 {
			args := []string{"sandbox", "create", "--name", "b", "--volume", "data"}
			if verb == "rm" {
				h.ok(args...)
				args = []string{"sandbox", "rm", "b"}
			}
			var r result
			var wg sync.WaitGroup
			wg.Go(func() { r = h.run(args...) })
			<-time.After(time.Duration(40*delay) * time.Millisecond) // The time does not matter: every point must work.
			d.kill()
			wg.Wait()
			d = h.serve()
			list := h.ok("sandbox", "ls", "-q")
			if holder := h.volume("data").Sandbox; holder != "" && !strings.Contains(list, string(holder)) {
				t.Errorf("killed in %s, the volume is with %s, and there are %q", verb, holder, list)
			}
			if list != "" {
				h.ok(append([]string{"sandbox", "rm"}, strings.Fields(list)...)...)
			}
			h.waitFor(func() bool { return h.volume("data").Sandbox == "" })
			h.ok("sandbox", "create", "--name", "c", "--volume", "data")
			if got := h.sh("c", "cat /workspace/file"); got != "one\ntwo" {
				t.Errorf("killed in %s (%v), the volume has %q", verb, r, got)
			}
			h.ok("sandbox", "rm", "c")
		}
	}
}

// TestPromise4HostileVolume tests that files that a guest creates in a volume do not affect the host, and that counting
// and removing do not follow its links.
func TestPromise4HostileVolume(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	victim := h.write("victim/file", "untouched\n")
	h.ok("sandbox", "create", "--name", "a", "--volume", "data")
	h.run("exec", "a", "--", "sh", "-c", fmt.Sprintf(`cd /workspace
cp /bin/true su; chown 0:0 su; chmod 6755 su; mknod null c 1 3; mknod disk b 8 0; mkfifo fifo
ln -s %[1]q absolute; ln -s %[2]q dir; ln -s ../../../../../../../../..%[1]s up; ln -s /proc/self/root root; ln -s loop loop
echo evil > absolute; echo evil > up; echo evil > dir/file; rm -rf dir/; rm -f dir; ln -s %[2]q dir
for n in 'new\nline' 'esc\033[31m' 'rtl\342\200\256gpj.exe' 'bad\377'; do echo x > "$(printf "$n.")"; done; echo x > -rf
truncate -s 50G sparse
d=; for i in $(seq 100); do d=$d/dddddddddddddddddddddddddddddddddddddddd; done; mkdir -p ".$d"
chmod 000 .; true`, victim, filepath.Dir(victim)))
	data := filepath.Join(h.data, "volumes", string(h.volume("data").ID), "data")
	seen, largest := 0, int64(0)
	root, err := os.OpenRoot(data) // Paths are longer than the host supports.
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		seen, largest = seen+1, max(largest, info.Size())
		if st := info.Sys().(*syscall.Stat_t); st.Uid < 0x50000000 || st.Gid < 0x50000000 {
			t.Errorf("%s belongs to %d:%d of the host", p, st.Uid, st.Gid)
		}
		if info.Mode()&fs.ModeDevice != 0 {
			t.Errorf("%s is a device", p)
		}
		return nil
	})
	if err != nil || seen < 100 || largest != 50<<30 {
		t.Errorf("the volume has %d files, the largest of %d bytes: %v", seen, largest, err)
	}
	// A setuid file is harmless if other users cannot reach it.
	for _, dir := range []string{h.data, filepath.Dir(filepath.Dir(data)), filepath.Dir(data)} {
		var st syscall.Stat_t
		if err := syscall.Stat(dir, &st); err != nil || st.Mode&0o077 != 0 || st.Uid != 0 {
			t.Errorf("%s has the mode %o and is %d's: %v", dir, st.Mode, st.Uid, err)
		}
	}
	if v := h.volume("data"); v.Files < 100 || v.Bytes > 1<<30 {
		t.Errorf("counted are %d files and %d bytes", v.Files, v.Bytes)
	}
	if out := h.ok("volume", "show", "data") + h.ok("volume", "ls") + h.ok("events", "data", "--for", "1s"); strings.ContainsAny(out, "\x1b\u202e") {
		t.Errorf("something is shown as it is: %.500q", out)
	}
	// The next sandbox has all of the files, and can access them again.
	h.ok("sandbox", "rm", "a")
	h.ok("sandbox", "create", "--name", "b", "--volume", "data:/v")
	if got := h.sh("b", "chmod 755 /v; cat /v/absolute /v/up /v/dir/file 2>/dev/null; readlink /v/dir; test -f /v/-rf && test -u /v/su && echo there"); strings.Contains(got, "untouched") || !strings.HasSuffix(got, "there") {
		t.Errorf("the next sandbox finds %q", got)
	}
	h.sh("b", "cd /v; for i in $(seq 300); do mkdir e && cd e || exit 1; done; chmod 000 /v")
	h.ok("sandbox", "rm", "b")
	h.ok("volume", "rm", "data")
	h.waitFor(func() bool {
		_, err := os.Lstat(filepath.Dir(data))
		return os.IsNotExist(err)
	})
	if got, err := os.ReadFile(victim); err != nil || string(got) != "untouched\n" {
		t.Errorf("the victim holds %q, %v", got, err)
	}
	if list, err := os.ReadDir(filepath.Join(h.data, "volumes")); err != nil || len(list) != 0 {
		t.Errorf("of the volume is left %v, %v", list, err)
	}
}

// beating is an agent whose service, which is part of its warm snapshot, works in the workspace after a signal file is
// created.
const beating = "image: host\ndriver: exec\ncommand: [/bin/sh, -c, '{prompt}']\nmemory: true\nmodels: ['-']\n" +
	"service: [/bin/sh, -c, 'while :; do [ -e go ] && echo beat >> beat; sleep 0.1; done']\nwarm: {prompt: echo warm, randomness: openssl}\n"

// TestVolumeWarm tests that a volume is mounted at the workspace of a warm snapshot, and that a service that was
// running before the fork continues in it.
func TestVolumeWarm(t *testing.T) {
	t.Parallel()
	h, _ := newShellHost(t, echoScript, map[string]string{"beating": beating})
	h.ok("agent", "warm", "beating")
	for i, before := range []string{"", "one "} {
		r := h.succeeds("--volume", "project", "beating", `pwd; cat file 2>/dev/null; rm -f beat; echo one > file; echo > go; until [ -s beat ]; do sleep 0.1; done; stat -c %n beat file`)
		if answer := strings.Join(strings.Fields(r.Result.Answer), " "); !r.Result.Warm || answer != "/workspace "+before+"beat file" {
			t.Errorf("run %d, warm %t, says %q", i+1, r.Result.Warm, answer)
		}
	}
	h.noSandboxes()
	h.ok("sandbox", "create", "--name", "a", "--volume", "project")
	if got := h.sh("a", "cat /workspace/file; test -s /workspace/beat && echo beats"); got != "one\nbeats" {
		t.Errorf("the volume has %q", got)
	}
}

// TestVolumeOfAnAgent tests that the built-in agent works in a volume that contains a project.
func TestVolumeOfAnAgent(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, caisson.ProviderLiteLLM, sample.Script, false, nil)
	h := newModelHost(t, []*upstream{u}, agentModel("m", "litellm"))
	h.agentsDir(nil)
	if err := sample.Write(filepath.Join(h.dir, "roman")); err != nil {
		t.Fatal(err)
	}
	h.ok("sandbox", "create", "--name", "a", "--volume", "project")
	h.ok("cp", "roman", "a:/tmp/roman")
	if got := h.sh("a", "cp -a /tmp/roman/. /workspace && cd /workspace && test -f test.sh && ! sh test.sh > /dev/null && echo broken"); got != "broken" {
		t.Fatalf("the project is %q", got)
	}
	h.ok("sandbox", "rm", "a")
	r := h.succeeds("--volume", "project", "--max-cost", "9", "caisson", sample.Prompt)
	if !strings.Contains(r.Result.Answer, sample.Answer) || r.Workspace != "" || changed(r, "roman.sh") != "modified" {
		t.Errorf("the run is %+v", r.Result)
	}
	h.noSandboxes()
	h.ok("sandbox", "create", "--name", "b", "--volume", "project")
	if got := h.sh("b", "cd /workspace && sh test.sh > /dev/null && grep '^4 IV' roman.sh"); got != "4 IV" {
		t.Errorf("the project is %q", got)
	}
}

// TestSandboxOfARepo tests that a sandbox is created with a clone of a repository, that its commits are delivered, and
// that nothing is left if cloning fails.
func TestSandboxOfARepo(t *testing.T) {
	t.Parallel()
	h, f := newRelay(t, forgetest.Options{Kind: caisson.ForgeGitHub})
	h.fails(2, "has no branch", "sandbox", "create", "--name", "dev", "--repo", "app", "--base", "nowhere")
	h.fails(3, "no repo", "sandbox", "create", "--name", "dev", "--repo", "nowhere")
	h.noSandboxes()
	h.ok("sandbox", "create", "--name", "dev", "--repo", "app", "--branch", "fix/login")
	h.sh("dev", "cd /workspace && git branch --show-current && echo mended > fix.txt && git add fix.txt && git commit -q -m 'mend it'")
	id := caisson.ID(h.ok("repo", "deliver", "app", "dev:/workspace"))
	var d caisson.Delivery
	h.waitFor(func() bool {
		d = shows[caisson.Delivery](h, "relay", "show", string(id))
		return d.State == caisson.DeliveryDelivered
	})
	if commit := f.Branches()["fix/login"]; commit == "" || commit != d.Commit {
		t.Errorf("the branch is at %q, the delivery is %+v", commit, d)
	}
	h.ok("sandbox", "create", "--name", "src", "--repo", "app:/src/app")
	if got := h.sh("src", "ls /src/app"); got != "README.md" {
		t.Errorf("the other clone has %q", got)
	}
}
