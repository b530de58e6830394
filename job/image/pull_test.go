package image

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/caisson-dev/caisson"
)

// testRegistry is an HTTP registry that runs in the test process.
type testRegistry struct {
	host   string
	client http.RoundTripper // for pushing; nil means remote.DefaultTransport
	blobs  atomic.Int32      // number of blob downloads
	hook   atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
}

const blobPath = "/blobs/sha256:"

func newRegistry(t *testing.T) *testRegistry {
	t.Helper()
	return newRegistryOn(t, httptest.NewServer)
}

func newRegistryOn(t *testing.T, serve func(http.Handler) *httptest.Server) *testRegistry {
	t.Helper()
	r := &testRegistry{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := serve(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if hook := r.hook.Load(); hook != nil && (*hook)(w, req) {
			return
		}
		if req.Method == http.MethodGet && strings.Contains(req.URL.Path, blobPath) {
			r.blobs.Add(1)
		}
		inner.ServeHTTP(w, req)
	}))
	t.Cleanup(srv.Close)
	_, r.host, _ = strings.Cut(srv.URL, "://")
	return r
}

func (r *testRegistry) intercept(hook func(http.ResponseWriter, *http.Request) bool) {
	r.hook.Store(&hook)
}

func (r *testRegistry) push(t *testing.T, repo string, img v1.Image, opts ...remote.Option) string {
	t.Helper()
	ref, err := name.ParseReference(r.host + "/" + repo)
	if err != nil {
		t.Fatal(err)
	}
	if r.client != nil {
		opts = append(opts, remote.WithTransport(r.client))
	}
	if err := remote.Write(ref, img, opts...); err != nil {
		t.Fatal(err)
	}
	return ref.Name()
}

func layerOf(t *testing.T, archive []byte) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func imageOf(t *testing.T, arch string, config v1.Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.ConfigFile(img, mustConfig(t, img, arch, config))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func mustConfig(t *testing.T, img v1.Image, arch string, config v1.Config) *v1.ConfigFile {
	t.Helper()
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture, cf.Config = "linux", arch, config
	return cf
}

// mergedListing lists an image's layers, topmost first.
func mergedListing(t *testing.T, img *caisson.Image) string {
	t.Helper()
	var b strings.Builder
	for _, l := range img.Rootfs.Layers {
		b.WriteString("[" + strings.ReplaceAll(strings.TrimSpace(listing(t, l)), "\n", " ") + "]")
	}
	return b.String()
}

func TestPull(t *testing.T) {
	d, reg := newDriver(t), newRegistry(t)
	base := layerOf(t, archiveOf(t, dir("etc"), entry{name: "etc/shadow", body: "s", mode: 0o600, uid: 42}, file("gone", "1")))
	top := layerOf(t, archiveOf(t, file(".wh.gone", ""), file("new", "2")))
	img := imageOf(t, runtime.GOARCH, v1.Config{Env: []string{"PATH=/bin", "A=b=c"}, Cmd: []string{"sh"}, WorkingDir: "/work", User: "42:42"}, base, top)
	ref := reg.push(t, "a/b:1", img)
	var stages []string
	got, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: ref}, "alice", func(p caisson.Progress) { stages = append(stages, p.Stage) })
	if err != nil {
		t.Fatal(err)
	}
	if s := mergedListing(t, got); s != "[gone whiteout new=2][etc/ etc/shadow=s gone=1]" {
		t.Errorf("got %s", s)
	}
	digest, _ := img.Digest()
	if got.Digest != digest.String() || got.Account != "alice" || got.Reference != ref || got.Size <= 0 || len(stages) == 0 {
		t.Errorf("got %+v, stages %v", got, stages)
	}
	c := got.Rootfs.Config
	if fmt.Sprintf("%v %v %v %v", c.Env, c.Command, c.Workdir, c.User) != "map[A:b=c PATH:/bin] [sh] /work 42:42" {
		t.Errorf("config %+v", c)
	}
	for _, p := range got.Rootfs.Layers {
		if strings.ContainsAny(p, ":,") {
			t.Errorf("overlayfs would misread %q", p)
		}
	}
	fi, err := os.Lstat(filepath.Join(got.Rootfs.Layers[1], "etc/shadow"))
	if err != nil || ownerOf(fi) != caisson.LayerUIDBase+42 || fi.Mode().Perm() != 0o600 {
		t.Errorf("shadow: %v, %v", fi, err)
	}

	pinned := strings.TrimSuffix(ref, ":1") + "@" + digest.String()
	before := reg.blobs.Load()
	again, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: pinned}, "alice", nil)
	if err != nil || again.Rootfs.Digest != got.Rootfs.Digest {
		t.Errorf("pinned: %+v, %v", again, err)
	}
	if n := reg.blobs.Load() - before; n > 1 {
		t.Errorf("%d blobs were downloaded again, at most the configuration may be", n)
	}
}

func TestPullPicksPlatform(t *testing.T) {
	d, reg := newDriver(t), newRegistry(t)
	var adds []mutate.IndexAddendum
	for _, arch := range []string{"amd64", "arm64"} {
		img := imageOf(t, arch, v1.Config{}, layerOf(t, archiveOf(t, file("arch", arch))))
		adds = append(adds, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	ref, err := name.ParseReference(reg.host + "/multi")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, mutate.AppendManifests(empty.Index, adds...)); err != nil {
		t.Fatal(err)
	}
	for platform, want := range map[string]string{"": runtime.GOARCH, "linux/amd64": "amd64", "linux/arm64": "arm64"} {
		img, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: ref.Name(), Platform: platform}, "alice", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := mergedListing(t, img); got != "[arch="+want+"]" {
			t.Errorf("%q: %s", platform, got)
		}
	}
	_, err = d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: ref.Name(), Platform: "linux/riscv64"}, "alice", nil)
	wantKind(t, err, caisson.NotFound)
}

func TestPullPrivate(t *testing.T) {
	d, reg := newDriver(t), newRegistry(t)
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if u, p, _ := r.BasicAuth(); u == "bob" && p == "s3cret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	ref := reg.push(t, "private", imageOf(t, runtime.GOARCH, v1.Config{}, layerOf(t, archiveOf(t, file("a", "1")))),
		remote.WithAuth(&authn.Basic{Username: "bob", Password: "s3cret"}))
	for _, auth := range []caisson.RegistryAuth{{}, {Username: "bob", Password: caisson.NewSecret("wrong-one")}} {
		_, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: ref, Auth: auth}, "alice", nil)
		wantKind(t, err, caisson.Denied)
		if err != nil && strings.Contains(err.Error(), "wrong-one") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
	img, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: ref, Auth: caisson.RegistryAuth{Username: "bob", Password: caisson.NewSecret("s3cret")}}, "alice", nil)
	if err != nil || mergedListing(t, img) != "[a=1]" {
		t.Errorf("%+v, %v", img, err)
	}
}

func TestPromise4PullRefuses(t *testing.T) {
	d := newDriver(t, func(c *Config) { c.MaxCompressed, c.MaxUncompressed = 1<<20, 2<<20 })
	reg := newRegistry(t)
	good := layerOf(t, archiveOf(t, file("a", "1")))
	zeros := layerOf(t, archiveOf(t, file("zeros", strings.Repeat("\x00", 4<<20))))
	foreign := static.NewLayer([]byte("x"), types.DockerForeignLayer)
	config := func(c v1.Config) v1.Image { return imageOf(t, runtime.GOARCH, c, good) }
	many := make([]v1.Layer, 130)
	for i := range many {
		many[i] = layerOf(t, archiveOf(t, file(fmt.Sprint("f", i), "")))
	}
	tests := []struct {
		name string
		img  v1.Image
		kind caisson.Kind
	}{
		{"escape", imageOf(t, runtime.GOARCH, v1.Config{}, layerOf(t, archiveOf(t, symlink("a", ".."), file("a/x", "1")))), caisson.Invalid},
		{"bomb", imageOf(t, runtime.GOARCH, v1.Config{}, zeros), caisson.Exhausted},
		{"large blob", imageOf(t, runtime.GOARCH, v1.Config{}, static.NewLayer(make([]byte, 2<<20), types.DockerLayer)), caisson.Exhausted},
		{"no archive", imageOf(t, runtime.GOARCH, v1.Config{}, static.NewLayer([]byte(strings.Repeat("junk", 500)), types.DockerLayer)), caisson.Invalid},
		{"other platform", imageOf(t, "s390x", v1.Config{}, good), caisson.NotFound},
		{"foreign layer", imageOf(t, runtime.GOARCH, v1.Config{}, foreign), caisson.Invalid},
		{"many layers", imageOf(t, runtime.GOARCH, v1.Config{}, many...), caisson.Exhausted},
		{"relative workdir", config(v1.Config{WorkingDir: "etc"}), caisson.Invalid},
		{"variable without name", config(v1.Config{Env: []string{"=x"}}), caisson.Invalid},
		{"variable with NUL", config(v1.Config{Env: []string{"A=x\x00y"}}), caisson.Invalid},
		{"user with newline", config(v1.Config{User: "root\nx"}), caisson.Invalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			repo := "bad/" + strings.ToLower(strings.ReplaceAll(tt.name, " ", "-"))
			ref, err := name.ParseReference(reg.host + "/" + repo)
			if err != nil {
				t.Fatal(err)
			}
			if err := remote.Write(ref, tt.img, remote.WithNondistributable); err != nil {
				t.Fatal(err)
			}
			_, err = d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: ref.Name()}, "alice", nil)
			wantKind(t, err, tt.kind)
		})
	}
	left, err := os.ReadDir(filepath.Join(d.layers.dir, "tmp"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// forgedLayer is a layer that reports the digest of another layer.
type forgedLayer struct {
	v1.Layer
	diffID v1.Hash
}

func (l forgedLayer) DiffID() (v1.Hash, error) { return l.diffID, nil }

func TestPullChecksDigests(t *testing.T) {
	d, reg := newDriver(t), newRegistry(t)
	real, fake := layerOf(t, archiveOf(t, file("a", "real"))), layerOf(t, archiveOf(t, file("a", "fake")))
	diffID, err := real.DiffID()
	if err != nil {
		t.Fatal(err)
	}
	lie := reg.push(t, "lie", imageOf(t, runtime.GOARCH, v1.Config{}, forgedLayer{fake, diffID}))
	_, err = d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: lie}, "mallory", nil)
	wantKind(t, err, caisson.Invalid)

	// The refused layer has not been stored under the claimed digest. After the real layer is stored, the pull still fails.
	img, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: reg.push(t, "truth", imageOf(t, runtime.GOARCH, v1.Config{}, real))}, "alice", nil)
	if err != nil || mergedListing(t, img) != "[a=real]" {
		t.Fatalf("%+v, %v", img, err)
	}
	_, err = d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: lie}, "mallory", nil)
	wantKind(t, err, caisson.Invalid)

	// A blob that is modified in transit is refused.
	other := layerOf(t, archiveOf(t, file("b", strings.Repeat("x", 1000))))
	ref := reg.push(t, "changed", imageOf(t, runtime.GOARCH, v1.Config{}, other))
	blob, _ := other.Digest()
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, blob.String()) {
			return false
		}
		rc, _ := fake.Compressed()
		io.Copy(w, rc)
		return true
	})
	if _, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: ref}, "alice", nil); err == nil {
		t.Error("a changed blob was accepted")
	}
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, blob.String()) {
			return false
		}
		size, _ := other.Size()
		w.Header().Set("Content-Length", fmt.Sprint(size))
		rc, _ := other.Compressed()
		io.CopyN(w, rc, size/2)
		panic(http.ErrAbortHandler)
	})
	_, err = d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: ref}, "alice", nil)
	wantKind(t, err, caisson.Unavailable)
}

func TestPullConcurrently(t *testing.T) {
	d, reg := newDriver(t), newRegistry(t)
	layer := layerOf(t, archiveOf(t, file("a", strings.Repeat("x", 1<<20))))
	blob, _ := layer.Digest()
	var downloads atomic.Int32
	reg.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, blob.String()) {
			downloads.Add(1)
		}
		return false
	})
	ref := reg.push(t, "shared", imageOf(t, runtime.GOARCH, v1.Config{}, layer))
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if _, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: ref}, "alice", nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := downloads.Load(); n != 1 {
		t.Errorf("the layer was downloaded %d times", n)
	}
	// A pull of another account must fetch the layer to prove access; the layer is not unpacked again.
	layers, err := d.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%v, %v", layers, err)
	}
	if _, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: ref}, "bob", nil); err != nil {
		t.Fatal(err)
	}
	after, err := d.Layers()
	if err != nil || downloads.Load() != 2 || len(after) != 1 || after[0].CreatedAt != layers[0].CreatedAt {
		t.Errorf("%d downloads, %v, %v", downloads.Load(), after, err)
	}
}

func TestPromise9KnowingADigestIsNotEnough(t *testing.T) {
	d, reg := newDriver(t), newRegistry(t)
	layer := layerOf(t, archiveOf(t, file("secret", "alice's")))
	img := imageOf(t, runtime.GOARCH, v1.Config{}, layer)
	if _, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: reg.push(t, "private", img)}, "alice", nil); err != nil {
		t.Fatal(err)
	}
	// Mallory's registry has a manifest and a configuration that refer to the layer, but not the layer's blob.
	blob, _ := layer.Digest()
	reg.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, blob.String()) {
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		return false
	})
	_, err := d.Pull(testContext(t), caisson.PullRequest{Local: true, Reference: reg.host + "/private"}, "mallory", nil)
	wantKind(t, err, caisson.NotFound)
}
