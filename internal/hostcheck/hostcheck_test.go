package hostcheck

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

func TestRun(t *testing.T) {
	dir := t.TempDir()
	checks := Run(context.Background(), Config{DataDir: filepath.Join(dir, "not", "yet"), Probe: probe{}})
	seen := map[string]bool{}
	for _, c := range checks {
		t.Logf("%-12s %-8s %s", c.Name, c.Status, c.Detail)
		if seen[c.Name] {
			t.Errorf("%s appears twice", c.Name)
		}
		seen[c.Name] = true
		if !slices.Contains([]string{caisson.CheckOK, caisson.CheckWarning, caisson.CheckFailed}, c.Status) || c.Detail == "" {
			t.Errorf("incomplete: %+v", c)
		}
		if (c.Status != caisson.CheckOK) == (c.Remedy == "") {
			t.Errorf("%s is %s with remedy %q", c.Name, c.Status, c.Remedy)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestLacks: the error about a machine names the first check that failed and its remedy.
func TestLacks(t *testing.T) {
	if err := firstFailure(ok("cgroups", "x"), warning("tun", "y", "z")); err != nil {
		t.Error(err)
	}
	err := firstFailure(ok("cgroups", "x"), failed("tun", "modprobe tun", "there is no /dev/net/tun"), failed("other", "", ""))
	if caisson.KindOf(err) != caisson.Unavailable || caisson.MessageOf(err) != "tun: there is no /dev/net/tun; to fix it: modprobe tun (see caisson doctor)" {
		t.Error(err)
	}
}

func TestMountsAreReallyTried(t *testing.T) {
	testneed.Root(t)
	dir := t.TempDir()
	checks := tryMounts(dir)
	if len(checks) != 3 {
		t.Errorf("got %+v", checks)
	}
	for _, c := range checks {
		if c.Status != caisson.CheckOK {
			testneed.Skip(t, "mounts", c.Name+": "+c.Detail)
		}
	}
	// Other tests mount elsewhere at the same time.
	if after, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(after), dir) {
		t.Errorf("mounts were left behind: %v\n%s", err, after)
	}
	// proc does not support idmapped mounts.
	userns, err := openUserNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer userns.Close()
	if err := tryIdmap("/proc", userns); err == nil {
		t.Error("an idmapped mount of /proc is said to work")
	}
}

type probe map[string]error

func (p probe) Probe(_ context.Context, platform string) error { return p[platform] }

func TestPlatforms(t *testing.T) {
	broken := errors.New("blocked")
	for _, c := range []struct {
		p    Probe
		want []string
	}{
		{nil, nil},
		{probe{}, []string{caisson.CheckOK}},
		{probe{"systrap": broken}, []string{caisson.CheckWarning}},
		{probe{"systrap": broken, "ptrace": broken}, []string{caisson.CheckFailed}},
	} {
		var got []string
		for _, check := range platforms(context.Background(), c.p) {
			got = append(got, check.Status)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.p, got, c.want)
		}
	}
}

func TestCgroupControllers(t *testing.T) {
	const v1 = "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu,cpuacct 0 0\n" +
		"cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ncgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n"
	const v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
	read := func(controllers string) func(string) string {
		return func(file string) string {
			if file != "/sys/fs/cgroup/cgroup.controllers" && !strings.HasPrefix(file, "/sys/fs/cgroup/unified") {
				t.Errorf("read %s", file)
			}
			return controllers
		}
	}
	for _, c := range []struct {
		name, mounts, controllers string
		version                   int
		have                      []string
	}{
		{"none", "proc /proc proc rw 0 0\n", "", 0, nil},
		{"v1", v1, "", 1, []string{"cpu", "memory", "pids"}},
		{"v2", v2, "cpuset cpu memory pids", 2, []string{"cpuset", "cpu", "memory", "pids"}},
		{"v2 without controllers", v2, "", 2, nil},
		{"hybrid", v1 + "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n", "", 1, []string{"cpu", "memory", "pids"}},
		{"malformed", "x\n\n", "", 0, nil},
	} {
		version, have := cgroupControllers(c.mounts, read(c.controllers))
		if version != c.version || !slices.Equal(have, c.have) {
			t.Errorf("%s: %d %v, want %d %v", c.name, version, have, c.version, c.have)
		}
	}
}

func TestParsers(t *testing.T) {
	for release, want := range map[string]kernelVersion{"6.1.0-18-amd64": {6, 1}, "5.19": {5, 19}, "10.0.1+": {10, 0}} {
		if v, err := parseKernel(release); err != nil || v != want {
			t.Errorf("%s: %v, %v", release, v, err)
		}
	}
	if _, err := parseKernel("linux"); err == nil {
		t.Error("no version was accepted")
	}
	if !(kernelVersion{6, 0}).atLeast(5, 19) || (kernelVersion{5, 18}).atLeast(5, 19) {
		t.Error("versions are compared wrongly")
	}
	if got := Worst([]caisson.Check{{Status: caisson.CheckOK}, {Status: caisson.CheckWarning}, {Status: caisson.CheckFailed}, {Status: caisson.CheckOK}}); got != caisson.CheckFailed {
		t.Errorf("worst is %s", got)
	}
	if got := Worst(nil); got != caisson.CheckOK {
		t.Errorf("worst of nothing is %s", got)
	}
}
