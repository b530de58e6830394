package image

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/workertest"
)

const bearer = "the-token"

// demandToken makes a registry require a bearer token. It issues tokens for reading a/b to the user bob, or to all clients if
// open is set.
func (r *testRegistry) demandToken(scheme string, open bool) {
	r.intercept(func(w http.ResponseWriter, req *http.Request) bool {
		q := req.URL.Query()
		user, password, _ := req.BasicAuth()
		switch {
		case req.URL.Path != "/token" && req.Header.Get("Authorization") == "Bearer "+bearer:
			return false
		case req.URL.Path != "/token":
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s://%s/token",service="test"`, scheme, r.host))
			w.WriteHeader(http.StatusUnauthorized)
		case q.Get("service") != "test" || q.Get("scope") != "repository:a/b:pull":
			w.WriteHeader(http.StatusBadRequest)
		case !open && (user != "bob" || password != "s3cret"):
			w.WriteHeader(http.StatusUnauthorized)
		default:
			fmt.Fprintf(w, `{"token":%q,"expires_in":60}`, bearer)
		}
		return true
	})
}

func smallImage(t *testing.T) v1.Image {
	t.Helper()
	return imageOf(t, runtime.GOARCH, v1.Config{}, layerOf(t, archiveOf(t, file("a", "1"))))
}

func TestPullWithBearerToken(t *testing.T) {
	tests := []struct {
		name string
		open bool
		auth caisson.RegistryAuth
		kind caisson.Kind // expected kind of the error; "" if the pull must succeed
	}{
		{"anonymous", true, caisson.RegistryAuth{}, ""},
		{"login", false, caisson.RegistryAuth{Username: "bob", Password: caisson.NewSecret("s3cret")}, ""},
		{"no login", false, caisson.RegistryAuth{}, caisson.Denied},
		{"wrong login", false, caisson.RegistryAuth{Username: "bob", Password: caisson.NewSecret("wrong-one")}, caisson.Denied},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, reg := newDriver(t), newRegistry(t)
			ref := reg.push(t, "a/b", smallImage(t))
			reg.demandToken("http", tt.open)
			img, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: ref, Auth: tt.auth}, "alice", nil)
			if tt.kind == "" && (err != nil || mergedListing(t, img) != "[a=1]") {
				t.Fatalf("%v, %v", img, err)
			}
			if tt.kind != "" {
				wantKind(t, err, tt.kind)
			}
			if err != nil && strings.Contains(err.Error(), "wrong-one") {
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
}

// newTLSRegistry returns a registry that uses TLS, and the path of a PEM file with its certificate authority.
func newTLSRegistry(t *testing.T) (reg *testRegistry, ca string) {
	t.Helper()
	var srv *httptest.Server
	reg = newRegistryOn(t, func(h http.Handler) *httptest.Server { srv = httptest.NewTLSServer(h); return srv })
	ca = filepath.Join(t.TempDir(), "ca.pem")
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(ca, data, 0o600); err != nil {
		t.Fatal(err)
	}
	reg.client = srv.Client().Transport
	return reg, ca
}

func TestPullFromOwnAuthority(t *testing.T) {
	reg, ca := newTLSRegistry(t)
	ref := reg.push(t, "a/b", smallImage(t))
	reg.demandToken("https", false)
	auth := caisson.RegistryAuth{Username: "bob", Password: caisson.NewSecret("s3cret")}
	req := caisson.PullRequest{Local: true, Reference: ref, Auth: auth}

	_, err := newDriver(t).Pull(testContext(t), req, "alice", nil)
	wantKind(t, err, caisson.Unavailable)
	if err != nil && !strings.Contains(err.Error(), "registryCA") {
		t.Errorf("the error does not say what to do: %v", err)
	}
	d := newDriver(t, func(c *Config) { c.RegistryCA = ca })
	img, err := d.Pull(testContext(t), req, "alice", nil)
	if err != nil || mergedListing(t, img) != "[a=1]" {
		t.Fatalf("%v, %v", img, err)
	}
}

func TestRegistryCA(t *testing.T) {
	_, ca := newTLSRegistry(t)
	empty, large := filepath.Join(t.TempDir(), "empty"), filepath.Join(t.TempDir(), "large")
	for path, data := range map[string]string{empty: "no certificate\n", large: strings.Repeat("x", maxCA+1)} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, ok := range map[string]bool{"": true, ca: true, empty: false, large: false, ca + ".missing": false} {
		_, err := New(Config{Dir: filepath.Join(t.TempDir(), "images"), Worker: workertest.Runner(t), RegistryCA: path})
		if ok && err != nil {
			t.Errorf("%q: %v", path, err)
		}
		if !ok {
			wantKind(t, err, caisson.Invalid)
		}
	}
}
