package image

import (
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/caisson-dev/caisson"
)

func TestPlausible(t *testing.T) {
	for address, want := range map[string]bool{
		"93.184.216.34:443": true, "10.1.2.3:443": true, "127.0.0.1:443": false, "[::1]:443": false, "169.254.169.254:80": false,
		"[fe80::1]:443": false, "[::ffff:169.254.169.254]:80": false, "0.0.0.0:443": false, "[fd00:ec2::254]:80": false,
	} {
		if err := (source{}).denyMetadata(false)(netip.MustParseAddrPort(address)); (err == nil) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// Pulls of remote callers must not reveal which services listen on this host or in its networks.
func TestPromise4TokensReachNoPrivateRegistry(t *testing.T) {
	reg, other := newRegistry(t), newRegistry(t)
	var asked atomic.Int32
	count := func(http.ResponseWriter, *http.Request) bool { asked.Add(1); return false }
	ref := reg.push(t, "a/b", imageOf(t, runtime.GOARCH, v1.Config{}, layerOf(t, archiveOf(t, file("a", "1")))))
	reg.intercept(count)
	other.intercept(count)
	_, port, err := net.SplitHostPort(reg.host)
	if err != nil {
		t.Fatal(err)
	}
	own := netip.MustParsePrefix("203.0.113.9/32")
	d := newDriver(t, func(c *Config) { c.OwnAddresses.PublicAddresses = []netip.Prefix{own} })
	for _, host := range []string{
		reg.host, "localhost:" + port, "127.1.2.3:" + port, "[::1]:" + port, "0.0.0.0:" + port, "10.255.255.1", "192.168.255.1:5000",
		"169.254.169.254", "[fd00:ec2::254]", "100.64.0.1", "[::ffff:7f00:1]:" + port,
		"203.0.113.9", "[64:ff9b::cb00:7109]:" + port, "[64:ff9b::7f00:1]:" + port,
	} {
		_, err := d.Pull(testContext(t), caisson.PullRequest{Reference: host + "/a/b"}, "alice", nil)
		wantKind(t, err, caisson.Denied)
		if err != nil && !strings.Contains(err.Error(), "insecureRegistries") {
			t.Errorf("%s: the error does not say what to do: %v", host, err)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d requests were made", n)
	}

	// A registry that the administrator lists is allowed, but hosts that it redirects to are not.
	listed := newDriver(t, func(c *Config) { c.InsecureRegistries = []string{reg.host} })
	img, err := listed.Pull(testContext(t), caisson.PullRequest{Reference: ref}, "alice", nil)
	if err != nil || mergedListing(t, img) != "[a=1]" {
		t.Fatalf("%v, %v", img, err)
	}
	asked.Store(0)
	_, err = listed.Pull(testContext(t), caisson.PullRequest{Reference: other.host + "/a/b"}, "alice", nil)
	wantKind(t, err, caisson.Denied)
	for _, elsewhere := range []string{"http://" + other.host, "https://" + other.host, "https://localhost:" + port} {
		reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, blobPath) {
				return false
			}
			http.Redirect(w, r, elsewhere+r.URL.Path, http.StatusTemporaryRedirect)
			return true
		})
		_, err = listed.Pull(testContext(t), caisson.PullRequest{Reference: ref}, "bob", nil)
		wantKind(t, err, caisson.Denied)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d requests were made where nobody may", n)
	}
}
