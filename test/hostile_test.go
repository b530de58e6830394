package test_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/steptest"
)

// deceives returns the first part of a text that could deceive a reader on a terminal, or "".
func deceives(s string) string {
	for _, r := range s {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r) {
			return fmt.Sprintf("%q", r)
		}
	}
	if !utf8.ValidString(s) {
		return "no text"
	}
	return ""
}

// TestPromise4ListingsAreEscaped tests that listings and errors show terminal control sequences and direction changes
// in names, processes and errors as escapes.
func TestPromise4ListingsAreEscaped(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ok("sandbox", "create", "--name", "a", "host")
	names := []string{`\033]0;owned\007`, `line\nsb-aaaa  fake  running`, `\342\200\256txt.exe`, `\377\376`, `\r\033[2Kgone`, `\302\233 31m`}
	for _, n := range names {
		h.ok("exec", "a", "--", "sh", "-c", `mkdir -p /tmp/h; printf content > "$(printf '/tmp/h/`+n+`')"`)
		h.ok("exec", "a", "--", "sh", "-c", `ln -s "$(printf '`+n+`')" "/tmp/h/l$$"`)
	}
	h.ok("exec", "-d", "a", "--", "bash", "-c", `printf '\033]0;owned\007' > /proc/self/comm; exec -a "$(printf '\033[31mred')" sleep 4321`)
	h.ok("exec", "-d", "a", "--", "perl", "-e", `open F,">/proc/self/comm"; print F "\e[31mx"; close F; sleep 4321`)
	listing := h.ok("sandbox", "files", "ls", "a:/tmp/h")
	if n := strings.Count(listing, "\n"); n != 2*len(names) {
		t.Errorf("%d files are listed on %d lines:\n%q", 2*len(names), n, listing)
	}
	nasty := "\x1b]0;owned\a\u202e\n"
	for _, args := range [][]string{
		{"sandbox", "files", "ls", "a:/tmp/h"}, {"sandbox", "files", "ls", "a:/tmp/h", "-o", "json"}, {"sandbox", "files", "ls", "a:/tmp/h", "-o", "yaml"},
		{"ps", "a"}, {"ps", "a", "-o", "json"},
		{"sandbox", "files", "cat", "a:/tmp/" + nasty}, {"sandbox", "files", "ls", "a:/" + nasty}, {"cp", "a:/" + nasty, "out"}, {"exec", "a", "--", nasty},
		{"sandbox", "show", nasty}, {"sandbox", "create", "--name", nasty, "host"}, {"sandbox", "create", nasty}, {"sandbox", "create", "-u", nasty, "host"},
		{"template", "show", nasty}, {"image", "pull", nasty + ":x"}, {"sandbox", "create", "--memory", nasty}, {nasty}, {"sandbox", "fork", "a", "--" + nasty},
	} {
		r := h.run(args...)
		if what := deceives(r.stdout + r.stderr); what != "" {
			t.Errorf("%s in %v", what, r)
		}
	}
}

// TestPromise4CopyOutStaysInItsDestination tests that a tree with every kind of special file is copied out as plain
// files, directories and links, of which none leads a later copy out of its destination, and without set-id bits.
func TestPromise4CopyOutStaysInItsDestination(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.ok("sandbox", "create", "--name", "a", "host")
	victim := h.write("victim/file", "untouched")
	secret := h.write("secret", "of the host")
	h.sh("a", `mkdir -p /tmp/t/dir && cd /tmp/t && echo plain > plain && ln -s plain link && ln plain hard &&
ln -s `+filepath.Dir(victim)+` absolute; ln -s ../victim up; ln -s ../../../../../../../../../../../`+secret+` deep; ln -s /dev/zero zero
mkfifo fifo; mknod null c 1 3; mknod disk b 8 0; mknod white c 0 0
cp /bin/true su; chmod 6755 su; chmod 1777 dir; chmod 4000 plain; chmod 644 plain
perl -e 'use Socket; socket(S,PF_UNIX,SOCK_STREAM,0); bind(S,sockaddr_un("/tmp/t/socket"))'
printf x > "$(printf 'a\nb')"; printf x > '-rf'; printf x > '...'; mkdir -p 'C:\..\..'`)
	out := filepath.Join(h.dir, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	r := h.run("cp", "a:/tmp/t", out)
	if what := deceives(r.stdout + r.stderr); what != "" {
		t.Errorf("%s in %v", what, r)
	}
	seen := 0
	err := filepath.WalkDir(out, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		seen++
		info, err := d.Info()
		if err != nil {
			return err
		}
		if m := info.Mode(); !m.IsRegular() && !m.IsDir() && m&fs.ModeSymlink == 0 {
			t.Errorf("%s came out as %v", p, m)
		} else if m&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			t.Errorf("%s came out as %v", p, m)
		}
		if info.Mode().IsRegular() {
			if data, err := os.ReadFile(p); err != nil || strings.Contains(string(data), "of the host") {
				t.Errorf("%s holds %.50q, %v", p, data, err)
			}
		}
		return nil
	})
	if err != nil || seen < 5 {
		t.Errorf("%d entries came out, %v; %v", seen, err, r)
	}

	// Links of the first copy are directories in the second one, and vice versa.
	h.sh("a", `cd /tmp/t && rm -rf absolute up dir && mkdir absolute up && echo overwritten > absolute/file && echo overwritten > up/file && ln -s `+filepath.Dir(victim)+` dir`)
	h.run("cp", "a:/tmp/t", out)
	h.sh("a", `cd /tmp/t && rm -rf dir && mkdir dir && echo overwritten > dir/file`)
	h.run("cp", "a:/tmp/t", out)
	if data, err := os.ReadFile(victim); err != nil || string(data) != "untouched" {
		t.Errorf("the victim holds %q, %v", data, err)
	}

	// A single special file is rejected without waiting for it.
	for _, name := range []string{"fifo", "null", "disk", "zero", "socket"} {
		r := h.run("sandbox", "files", "cat", "a:/tmp/t/"+name)
		if r.code == 0 || r.took > settle {
			t.Errorf("%v", r)
		}
	}
}

// TestPromise4LyingFileServer tests that the host gets an error if a sandbox replaces the program that serves its
// files: the host does not hang, exhaust its memory, or touch its own files.
func TestPromise4LyingFileServer(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.serve()
	victim := h.write("victim", "untouched")
	liars := map[string]string{
		"silent":            `#!/bin/sh` + "\nexec sleep 100000\n",
		"gone":              "#!/bin/sh\nexit 0\n",
		"garbage":           "#!/bin/sh\nexec head -c 1000000 /dev/urandom\n",
		"endless zeros":     "#!/bin/sh\nexec cat /dev/zero\n",
		"endless 0xff":      "#!/bin/sh\nexec tr '\\0' '\\377' < /dev/zero\n",
		"endless text":      "#!/bin/sh\nexec yes '{\"name\":\"../../etc/passwd\"}'\n",
		"an echo":           "#!/bin/sh\nexec cat\n",
		"endless errors":    "#!/bin/sh\nexec yes error >&2\n",
		"not a program":     "neither ELF nor script",
		"a huge length":     "#!/usr/bin/perl\n$|=1; binmode STDOUT; while(sysread(STDIN,$b,65536)){print pack('N',0x7fffffff).('A'x65536)}\n",
		"tiny lengths":      "#!/usr/bin/perl\n$|=1; binmode STDOUT; while(sysread(STDIN,$b,65536)){print pack('V',1).'A' for 1..100000}\n",
		"a tar of the host": "#!/usr/bin/perl\n$|=1; binmode STDOUT; while(sysread(STDIN,$b,65536)){print 'x'x512}\n",
	}
	sample := steptest.Every(3, t.Name())
	for i, name := range slices.Sorted(maps.Keys(liars)) {
		if !sample.Has(i) {
			continue
		}
		liar := liars[name]
		h.ok("sandbox", "create", "--name", "a", "host")
		h.ok("sandbox", "files", "ls", "a:/") // Served by the original program, which is replaced while it is in use.
		h.ok("exec", "a", "--", "sh", "-c", `printf '%s' "$0" > /tmp/liar; chmod 755 /tmp/liar; rm -f /.caisson/inside; cp /tmp/liar /.caisson/inside; for p in /proc/[0-9]*; do case "$(readlink $p/exe)" in *inside*) [ ${p#/proc/} != 1 ] && kill -9 ${p#/proc/};; esac; done; true`, liar)
		out := filepath.Join(h.dir, "out")
		for _, args := range [][]string{
			{"sandbox", "files", "ls", "a:/"}, {"sandbox", "files", "cat", "a:/etc/hostname"}, {"cp", "a:/etc", out}, {"cp", victim, "a:/x"},
			{"sandbox", "files", "stat", "a:/etc"},
		} {
			// A server that never responds is not an error: the client may wait and give up.
			limit := "20"
			if name == "silent" {
				limit = "1"
			}
			r := h.runTimed(limit, args...)
			if r.code == 0 {
				t.Errorf("%s: %v", name, r)
			}
			if r.code == 137 && name != "silent" {
				t.Errorf("%s: hangs: %v", name, r)
			}
			if what := deceives(r.stderr); what != "" {
				t.Errorf("%s: %s in %v", name, what, r)
			}
		}
		if _, err := os.Lstat(out); err == nil {
			err := filepath.WalkDir(out, func(p string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					t.Errorf("%s: %s was made", name, p)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
			os.RemoveAll(out)
		}
		// The sandbox can still be used otherwise, and removed.
		h.ok("exec", "a", "--", "true")
		h.ok("sandbox", "rm", "a")
	}
	if data, err := os.ReadFile(victim); err != nil || string(data) != "untouched" {
		t.Errorf("the victim holds %q, %v", data, err)
	}
	t.Logf("the daemon has %s", memory(d.cmd.Process.Pid))
}

// runTimed is run with a limit in seconds, after which the command is killed as by a user.
func (h *host) runTimed(limit string, args ...string) result {
	h.t.Helper()
	timed := *h
	timed.bin = "/usr/bin/timeout"
	return timed.run(append([]string{"-s", "KILL", limit, h.bin}, args...)...)
}

// TestPromise4HostileSetup tests the layer that set-up steps create on the host. Its files belong to no user of the
// host, include no devices, have no effect outside sandboxes, and appear unchanged in each sandbox.
func TestPromise4HostileSetup(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	victim := h.write("victim", "untouched")
	h.ok("template", "put", h.write("t.yaml", `name: t
image: host
setup:
- run: [sh, -c, 'mkdir -p /opt/d && cd /opt/d && ln -s `+victim+` absolute && ln -s ../../../../../../../../..`+victim+` up && mkfifo fifo && cp /bin/true su && chmod 6755 su && ln su hard']
- run: [sh, -c, 'cd /opt/d; mknod null c 1 3; mknod disk b 8 0; mknod white c 0 0; touch .wh.file .wh..wh..opq; mkdir -m 0 closed; touch "$(printf "e\\033[31m\\nx")"; chown 1000:1000 fifo; true']
- run: [sh, -c, 'rm -rf /etc/cron.d /usr/share/doc; ln -s /proc/self/root/../../.. /opt/d/root; setfattr -n user.overlay.redirect -v /etc /opt/d 2>/dev/null; setfattr -n trusted.overlay.opaque -v y /opt/d 2>/dev/null; true']
`))
	if r := h.run("template", "build", "t"); r.code != 0 {
		// A rejection with a reason is safe, too.
		if deceives(r.stderr) != "" || r.code == 1 {
			t.Errorf("%v", r)
		}
		return
	}
	err := filepath.WalkDir(filepath.Join(h.data, "images"), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		switch kind := st.Mode & unix.S_IFMT; {
		case kind == unix.S_IFBLK, kind == unix.S_IFCHR && st.Rdev != 0:
			t.Errorf("%s is a device on the host", p)
		case st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 && st.Uid < caisson.LayerUIDBase:
			t.Errorf("%s is set-uid for a user of the host", p)
		case strings.Contains(p, "/opt/") && st.Uid < caisson.LayerUIDBase:
			t.Errorf("%s belongs to uid %d of the host", p, st.Uid)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	h.ok("sandbox", "create", "--name", "a", "t")
	if got := h.sh("a", `test -u /opt/d/su && test -p /opt/d/fifo && stat -c %u /opt/d/fifo; readlink /opt/d/up /opt/d/absolute; cat /opt/d/absolute /opt/d/up 2>/dev/null; ls /etc/cron.d /usr/share/doc 2>/dev/null; true`); !strings.HasPrefix(got, "1000\n") || strings.Contains(got, "untouched") {
		t.Errorf("the sandbox has %q", got)
	}
	if data, err := os.ReadFile(victim); err != nil || string(data) != "untouched" {
		t.Errorf("the victim holds %q, %v", data, err)
	}
}

// TestPromise4WritableMount tests that files that a sandbox writes to a mounted host directory can neither be executed
// with permissions of the host nor followed as links.
func TestPromise4WritableMount(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	dir := filepath.Join(h.dir, "work")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	const owner = 12345
	if err := os.Chown(dir, owner, owner); err != nil {
		t.Fatal(err)
	}
	h.ok("sandbox", "create", "--name", "a", "--mount", dir+":/work:rw", "host")
	h.run("exec", "a", "--", "sh", "-c", "cd /work; cp /bin/true su; chmod 6755 su; mknod null c 1 3; mknod disk b 8 0; echo x > plain")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != owner || st.Gid != owner {
			t.Errorf("%s belongs to %d:%d of the host, the directory to %d", e.Name(), st.Uid, st.Gid, owner)
		}
		if info.Mode()&fs.ModeDevice != 0 {
			t.Errorf("%s is a device", e.Name())
		}
	}
}
