package image

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/caisson-dev/caisson"
)

func TestPullErrors(t *testing.T) {
	d, reg := newDriver(t), newRegistry(t)
	closed := httptest.NewServer(nil)
	closed.Close()
	tests := []struct {
		name string
		req  caisson.PullRequest
		kind caisson.Kind
	}{
		{"no such image", caisson.PullRequest{Local: true, Reference: reg.host + "/none/such"}, caisson.NotFound},
		{"nobody there", caisson.PullRequest{Local: true, Reference: strings.TrimPrefix(closed.URL, "http://") + "/xx"}, caisson.Unavailable},
		{"offline", caisson.PullRequest{Local: true, Reference: reg.host + "/xx", Offline: true}, caisson.NotFound},
		{"bad reference", caisson.PullRequest{Local: true, Reference: "Not A Reference"}, caisson.Invalid},
		{"empty reference", caisson.PullRequest{}, caisson.Invalid},
		{"bad platform", caisson.PullRequest{Local: true, Reference: "x", Platform: "windows/amd64"}, caisson.Invalid},
		{"path without descriptor", caisson.PullRequest{Local: true, Reference: "dir:/etc"}, caisson.Denied},
		{"archive without descriptor", caisson.PullRequest{Local: true, Reference: "tar:/x.tar"}, caisson.Denied},
		{"metadata service", caisson.PullRequest{Local: true, Reference: "169.254.169.254/xx"}, caisson.Denied},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := d.Pull(testContext(t), tt.req, "alice", nil)
			wantKind(t, err, tt.kind)
		})
	}
	_, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: "x"}, "../bob", nil)
	wantKind(t, err, caisson.Invalid)
}

// The token realm of a registry can direct pulls neither to private addresses nor to servers without TLS.
func TestPullIsNotSentElsewhere(t *testing.T) {
	d, reg := newDriver(t), newRegistry(t)
	for _, realm := range []string{"http://169.254.169.254/latest", "https://169.254.169.254/latest", "http://localhost.localdomain:1/x"} {
		reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		})
		_, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: reg.host + "/xx"}, "alice", nil)
		if kind := caisson.KindOf(err); kind != caisson.Denied && kind != caisson.Invalid {
			t.Errorf("%s: %v", realm, err)
		}
	}
	g, err := source{}.transport("registry.example", false)
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequest(http.MethodGet, "http://registry.example/v2/", nil)
	if _, err := g.RoundTrip(req); caisson.KindOf(err) != caisson.Denied {
		t.Errorf("plain HTTP: %v", err)
	}
}

func TestPullCancelled(t *testing.T) {
	d, reg := newDriver(t), newRegistry(t)
	ref := reg.push(t, "slow", imageOf(t, runtime.GOARCH, v1.Config{}, layerOf(t, archiveOf(t, file("a", "1")))))
	ctx, cancel := newCancel(t)
	reg.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, blobPath) {
			cancel()
			<-r.Context().Done()
		}
		return false
	})
	if _, err := d.Pull(ctx, caisson.PullRequest{Local: true, Reference: ref}, "alice", nil); !errors.Is(err, ctx.Err()) {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(d.layers.dir, "tmp")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
