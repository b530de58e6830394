package image

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/workertest"
)

// fakeHost makes a host's root directory, with default owners and modes unless specified.
func fakeHost(t *testing.T, merged bool) string {
	t.Helper()
	defer unix.Umask(unix.Umask(0o022))
	root := t.TempDir()
	for _, d := range []string{"etc/ssl/certs", "etc/ssl/private", "etc/alternatives", "etc/ld.so.conf.d", "etc/private.d", "usr/bin", "usr/lib",
		"usr/sbin", "usr/local/bin", "var/lib/dpkg", "root", "home/me", "opt/x"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, body := range map[string]string{
		"etc/passwd": "me:x:1:1::/home/me:/bin/sh\n", "etc/shadow": "secret", "etc/ssl/private/key.pem": "secret",
		"etc/ssl/certs/ca-certificates.crt": "CA", "etc/ssl/certs/other.pem": "other", "etc/nsswitch.conf": "hosts: files dns\n",
		"etc/ld.so.conf.d/a.conf": "/usr/lib", "etc/hostname": "secret", "usr/lib/os-release": "ID=x", "usr/local/bin/tool": "x",
		"usr/bin/sh": "x", "var/lib/dpkg/status": "1", "root/key": "secret", "etc/timezone": "UTC",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	links := map[string]string{
		"etc/os-release": "../usr/lib/os-release", "etc/alternatives/awk": "/usr/bin/mawk", "etc/alternatives/bad": "/usr/local/bin/tool",
		"etc/alternatives/home": "/home/me/x", "etc/mime.types": "/root/key", "etc/services": "/etc/shadow", "etc/shells": "/../etc/../root/key",
		"etc/localtime": "/usr/share/zoneinfo/UTC",
	}
	if merged {
		links["bin"], links["lib"], links["sbin"] = "usr/bin", "/usr/lib", "usr/sbin"
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, secret := range []string{"etc/shadow", "etc/timezone"} {
		if err := os.Chmod(filepath.Join(root, secret), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if !merged {
		for _, d := range []string{"bin", "sbin", "lib"} {
			if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

func TestHostImage(t *testing.T) {
	root := fakeHost(t, true)
	d := newDriver(t, func(c *Config) { c.HostRoot = root })
	img, err := d.Host(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	got := listing(t, img.Rootfs.Layers[0])
	for _, want := range []string{"bin -> usr/bin\n", "lib -> /usr/lib\n", "usr/\n", "etc/os-release -> ../usr/lib/os-release\n",
		"etc/alternatives/awk -> /usr/bin/mawk\n", "etc/ssl/certs/ca-certificates.crt=CA\n", "etc/ld.so.conf.d/a.conf=/usr/lib\n",
		"etc/localtime -> /usr/share/zoneinfo/UTC\n", "home/user/\n", "var/tmp/\n", "etc/passwd=root:x:0:0:"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	for _, bad := range []string{"secret", "other", "me:x", "tool", "home/me", "timezone", "opt/x"} {
		if strings.Contains(got, bad) {
			t.Errorf("%q is in\n%s", bad, got)
		}
	}
	want := []caisson.Bind{{Source: filepath.Join(root, "usr"), Target: "/usr"}, {Source: d.host.empty, Target: "/usr/local"}}
	if !slices.Equal(img.Rootfs.Binds, want) {
		t.Errorf("binds %v", img.Rootfs.Binds)
	}
	for name, want := range map[string]uint32{".": 0, "root": 0, "home/user": guestUser, "etc/passwd": 0, "bin": 0} {
		fi, err := os.Lstat(filepath.Join(img.Rootfs.Layers[0], name))
		if err != nil || ownerOf(fi) != caisson.LayerUIDBase+want {
			t.Errorf("%s belongs to %d, %v", name, ownerOf(fi), err)
		}
	}
	if fi, err := os.Stat(filepath.Join(img.Rootfs.Layers[0], "tmp")); err != nil || fi.Mode().Perm() != 0o777 || fi.Mode()&os.ModeSticky == 0 {
		t.Errorf("tmp: %v, %v", fi.Mode(), err)
	}
}

func TestHostImageNotMerged(t *testing.T) {
	root := fakeHost(t, false)
	if err := os.RemoveAll(filepath.Join(root, "usr/local")); err != nil {
		t.Fatal(err)
	}
	d := newDriver(t, func(c *Config) { c.HostRoot = root })
	img, err := d.Host(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, b := range img.Rootfs.Binds {
		targets = append(targets, b.Target)
	}
	if !slices.Equal(targets, []string{"/usr", "/bin", "/sbin", "/lib"}) {
		t.Errorf("binds %v", targets)
	}
	if !strings.Contains(listing(t, img.Rootfs.Layers[0]), "lib/\n") {
		t.Error("no place to mount /lib on")
	}
}

func TestHostDigestFollowsTheHost(t *testing.T) {
	root := fakeHost(t, true)
	d := newDriver(t, func(c *Config) { c.HostRoot = root })
	digest := func() string {
		t.Helper()
		img, err := d.Host(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		return img.Digest
	}
	last := digest()
	if again := digest(); again != last {
		t.Fatalf("%s became %s though nothing changed", last, again)
	}
	other, err := New(Config{Dir: filepath.Join(t.TempDir(), "other"), Worker: d.worker, HostRoot: root})
	if err != nil {
		t.Fatal(err)
	}
	if img, err := other.Host(testContext(t)); err != nil || strings.Contains(img.Digest, d.layers.dir) {
		t.Fatalf("%v, %v", img, err)
	}
	write := func(name, body string) func() error {
		return func() error {
			defer unix.Umask(unix.Umask(0o022))
			tmp := filepath.Join(root, name+".new")
			if err := os.WriteFile(tmp, []byte(body), 0o644); err != nil {
				return err
			}
			return os.Rename(tmp, filepath.Join(root, name))
		}
	}
	for name, change := range map[string]func() error{
		"package state":    write("var/lib/dpkg/status", "2"),
		"program replaced": write("usr/bin/sh", "y"),
		"library added":    write("usr/lib/new.so", ""),
		"CA bundle":        write("etc/ssl/certs/ca-certificates.crt", "CA2"),
		"usr/local":        func() error { return os.RemoveAll(filepath.Join(root, "usr/local")) },
		"package state time": func() error {
			return os.Chtimes(filepath.Join(root, "var/lib/dpkg/status"), time.Time{}, time.Unix(1, 0))
		},
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		now := digest()
		if now == last {
			t.Errorf("%s: the digest did not change", name)
		}
		last = now
	}
}

func TestHostLayerIsMadeAgain(t *testing.T) {
	d := newDriver(t, func(c *Config) { c.HostRoot = fakeHost(t, true) })
	first, err := d.Host(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Prune(testContext(t), func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	second, err := d.Host(testContext(t))
	if err != nil || second.Digest != first.Digest {
		t.Fatalf("%v, %v", second, err)
	}
	if _, err := os.Stat(second.Rootfs.Layers[0]); err != nil {
		t.Error(err)
	}
}

// This builds the image of the machine that the test runs on.
func TestRealHostImage(t *testing.T) {
	d := newDriver(t)
	img, err := d.Host(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	got := listing(t, img.Rootfs.Layers[0])
	for _, bad := range []string{"etc/shadow", "etc/gshadow", "etc/ssl/private", "etc/machine-id", "etc/hostname", "etc/resolv.conf"} {
		if strings.Contains(got, bad) {
			t.Errorf("%s is in the host image", bad)
		}
	}
	start := time.Now()
	if _, err := d.Host(testContext(t)); err != nil {
		t.Fatal(err)
	}
	t.Logf("a cached call took %v", time.Since(start))
}

func BenchmarkHost(b *testing.B) {
	d, err := New(Config{Dir: filepath.Join(b.TempDir(), "images"), Worker: workertest.Runner(b)})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("cached", func(b *testing.B) {
		for b.Loop() {
			if _, err := d.Host(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("changed", func(b *testing.B) {
		for b.Loop() {
			d.host.cached = nil
			if _, err := d.Host(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
