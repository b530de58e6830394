package baseline_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/fsat"
	"github.com/caisson-dev/caisson/job/gate/gatetest"
	"github.com/caisson-dev/caisson/job/gate/overlaytest"
)

func TestMask(t *testing.T) {
	m, err := baseline.NewMask(append(baseline.DefaultHidden(), "/top.txt", "a/*/c"), []string{"testdata/*.pem", "fixtures/.env"})
	gatetest.Must(t, err)
	for _, path := range []string{
		".env", ".ENV", ".env.local", ".env.production", "deep/down/.env", "server.pem", "SERVER.PEM", "x/tls.key", "id_rsa", "Id_Ed25519",
		".npmrc", ".netrc", ".pypirc", ".aws/credentials", "home/.aws/credentials", ".config/gcloud", ".config/gcloud/x/y", ".kube/config",
		".docker/config.json", "a.p12", "a.pfx", "a.jks", "a.keystore", ".git-credentials", "service-account.json",
		"service-account-prod.json", ".ssh/known_hosts", "top.txt", "a/b/c", "x/a/b/c/d", ".env/x", "testdata/x/a.pem",
	} {
		if !m.Hides(path) {
			t.Errorf("%s is not hidden", path)
		}
	}
	for _, path := range []string{
		".env.example", ".env.sample", "x/.env.template", "env", "environment.ts", "pem", "a.pem.txt", "credentials", "x/config", "config.json",
		"sub/top.txt", "a/c", "a/b/d", "testdata/a.pem", "x/testdata/A.pem", "fixtures/.env", "id_rsa.pub", "package.json", "\xff", "keys.go",
	} {
		if m.Hides(path) {
			t.Errorf("%s is hidden", path)
		}
	}
}

func TestMaskRefuses(t *testing.T) {
	for _, p := range []string{"", "/", "a//b", "../x", "a/../b", ".", "[", "a/[", strings.Repeat("a", 300), "a\x00"} {
		for _, lists := range [][2][]string{{{p}, nil}, {nil, {p}}} {
			if _, err := baseline.NewMask(lists[0], lists[1]); caisson.KindOf(err) != caisson.Invalid {
				t.Errorf("%.20q: %v", p, err)
			}
		}
	}
	if _, err := baseline.NewMask(make([]string, 2000), nil); err == nil {
		t.Error("2000 patterns")
	}
}

// Promise 2: known secret files of a workspace are hidden, and their parent directories look unchanged.
func TestPromise2MaskHides(t *testing.T) {
	o := overlaytest.New(t, func(host string) {
		gatetest.Write(t, host+"/.env", "SECRET=1\n")
		gatetest.Write(t, host+"/.env.example", "SECRET=\n")
		gatetest.Write(t, host+"/a/b/server.pem", "secret\n")
		gatetest.Write(t, host+"/a/b/x", "x\n")
		gatetest.Write(t, host+"/.aws/credentials", "secret\n")
		gatetest.Write(t, host+"/.ssh/id", "secret\n")
		gatetest.Must(t, os.Chmod(host+"/a/b", 0o500))
		gatetest.Must(t, os.Chmod(host+"/a", 0o711))
	})
	for _, path := range []string{".env", "a/b/server.pem", ".aws/credentials", ".ssh", ".ssh/id"} {
		if _, err := os.Lstat(o.Box + "/" + path); !os.IsNotExist(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
	for path, mode := range map[string]uint32{".env.example": 0o644, "a/b/x": 0o644, "a/b": 0o500, "a": 0o711, ".aws": 0o755} {
		var st unix.Stat_t
		if err := unix.Lstat(o.Box+"/"+path, &st); err != nil || st.Mode&fsat.ModeBits != mode {
			t.Errorf("%s: %o, %v", path, st.Mode, err)
		}
	}
	// Nothing that the sandbox writes next to them can change them.
	gatetest.Write(t, o.Box+"/a/b/new", "x\n")
	gatetest.Write(t, o.Box+"/.ssh/id", "mine\n")
	if diffs, _ := o.Compare(compare.Options{}); overlaytest.Summary(diffs) != "mode .ssh deny\nadded .ssh/id deny\nadded a/b/new" {
		t.Errorf("got\n%s", overlaytest.Summary(diffs))
	}
}

func FuzzMask(f *testing.F) {
	f.Add("*.pem", "a/b.pem")
	f.Add("a/[x-z]*", "A/Y")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		m, err := baseline.NewMask([]string{pattern}, nil)
		if err != nil || !fsat.ValidPath(path) {
			return
		}
		if m.Hides(path) && !m.Hides(path+"/below") {
			t.Errorf("%q hides %q and not what is below", pattern, path)
		}
	})
}
