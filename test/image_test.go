package test_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/caisson-dev/caisson"
)

// TestFrozenLayer tests that files that set-up steps add, change, remove and replace appear so in each sandbox of the
// template, from gVisor's layer through an overlay.
func TestFrozenLayer(t *testing.T) {
	h := newHost(t)
	steps := []string{
		"mkdir -p /opt/app && echo hi > /opt/app/x && chown 1000:1000 /opt/app/x && chmod 4755 /opt/app/x && ln /opt/app/x /opt/app/hard",
		"ln -s /etc/passwd /opt/app/link && mkfifo /opt/app/fifo && touch -d '2001-02-03 04:05:06 UTC' /opt/app/old && chmod 700 /opt",
		"rm /etc/os-release /etc/services /etc/nsswitch.conf", // Several files, because gVisor uses one whiteout with many names.
		"rm -rf /etc/ssl && mkdir /etc/ssl && touch /etc/ssl/only",
		"rm -rf /etc/alternatives && echo file > /etc/alternatives && rm /etc/protocols && mkdir /etc/protocols",
	}
	file := "name: frozen\nimage: host\nsetup:\n"
	for _, s := range steps {
		file += "- run: [sh, -c, \"" + s + "\"]\n"
	}
	h.ok("template", "put", h.write("frozen.yaml", file))
	h.ok("template", "build", "frozen")
	script := `cat /opt/app/x; cd /opt/app; stat -c '%n %A %u:%g %h' fifo hard link x; stat -c %Y old; stat -c '%a' /opt; readlink link
ls /etc/os-release /etc/services /etc/nsswitch.conf 2>/dev/null; ls -A /etc/ssl /etc/protocols; cat /etc/alternatives`
	want := `hi
fifo prw-r--r-- 0:0 1
hard -rwsr-xr-x 1000:1000 2
link lrwxrwxrwx 0:0 1
x -rwsr-xr-x 1000:1000 2
981173106
700
/etc/passwd
/etc/protocols:

/etc/ssl:
only
file`
	first := h.ok("sandbox", "create", "frozen")
	if got := h.sh(first, script); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// Sandboxes change copies, including names that the layer hides.
	h.sh(first, "rm -r /opt/app /etc/ssl /etc/protocols /etc/alternatives && mkdir /etc/services && echo own > /etc/os-release")
	second := h.ok("sandbox", "create", "frozen")
	if got := h.sh(second, script); got != want {
		t.Errorf("the second sandbox has\n%s\nwant\n%s", got, want)
	}
	if a, b := h.sh(first, "cat /etc/machine-id"), h.sh(second, "cat /etc/machine-id"); a == b {
		t.Errorf("two sandboxes of a layer have the machine-id %s", a)
	}
}

// layer returns a layer of files. A name that ends with / is a directory.
func layer(t *testing.T, uid int, mode int64, files ...string) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, f := range files {
		path, body, _ := strings.Cut(f, "=")
		hdr := &tar.Header{Name: path, Typeflag: tar.TypeReg, Mode: mode, Uid: uid, Gid: uid, Size: int64(len(body))}
		if strings.HasSuffix(path, "/") {
			hdr.Typeflag, hdr.Mode = tar.TypeDir, 0o755
		}
		if err := tw.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestImageFromRegistry runs an image from a registry on this host, whose layers remove and replace files of lower
// layers.
func TestImageFromRegistry(t *testing.T) {
	h := newHost(t)
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	img, err := mutate.AppendLayers(empty.Image,
		layer(t, 42, 0o640, "data/", "data/kept=1", "data/gone=2", "data/dir/", "data/dir/below=3"),
		layer(t, 0, 0o4755, "data/.wh.gone=", "data/dir/.wh..wh..opq=", "data/dir/above=4"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{User: "42:42", WorkingDir: "/data"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(strings.TrimPrefix(srv.URL, "http://") + "/some/image:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got := h.ok("image", "pull", ref.Name()); got != digest.String() {
		t.Errorf("pulled %s, want %s", got, digest)
	}
	h.ok("template", "put", h.write("t.yaml", "name: pulled\nimage: "+ref.Name()+"\n"))
	sb := h.ok("sandbox", "create", "pulled")
	if got := h.ok("exec", sb, "--", "/.caisson/inside", "test", "echo", "works"); got != "works" {
		t.Errorf("got %q", got)
	}
	if got := h.ok("sandbox", "files", "ls", "-q", sb+":/data"); got != "dir\nkept" {
		t.Errorf("/data has %q", got)
	}
	if got := h.ok("sandbox", "files", "ls", "-q", sb+":/data/dir"); got != "above" {
		t.Errorf("/data/dir has %q", got)
	}
	for path, want := range map[string]string{"kept": "0640 42:42", "dir/above": "4755 0:0"} {
		f := shows[caisson.FileInfo](h, "sandbox", "files", "stat", sb+":/data/"+path)
		if got := fmt.Sprintf("%s %d:%d", f.Mode, f.UID, f.GID); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}

// TestPromise4TokensPullNothingPrivate tests that requests over TCP cannot make the daemon connect to services on its
// host.
func TestPromise4TokensPullNothingPrivate(t *testing.T) {
	h := newHost(t)
	var asked atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(srv.Close)
	ref := strings.TrimPrefix(srv.URL, "http://") + "/some/image"
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	d := h.serve("--listen", address)
	defer d.end()
	h.fails(3, "the registry has no", "image", "pull", ref)
	if asked.Swap(0) == 0 {
		t.Error("a local caller did not reach the registry")
	}
	remote := *h
	remote.env = append(slices.DeleteFunc(slices.Clone(h.env), func(s string) bool { return strings.HasPrefix(s, "CAISSON_HOST=") }),
		"CAISSON_HOST=http://"+address, "CAISSON_TOKEN="+h.ok("token", "create", "-q", "test"))
	remote.ok("sandbox", "ls")
	remote.ok("template", "put", h.write("t.yaml", "name: private\nimage: "+ref+"\n"))
	for _, command := range [][]string{{"image", "pull", ref}, {"template", "build", "private"}, {"sandbox", "create", "private"}} {
		remote.fails(5, "insecureRegistries", command...)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d requests were made for a token", n)
	}
}

// TestImageFromPath creates images from a directory and from an archive, which contain no programs except their own.
func TestImageFromPath(t *testing.T) {
	h := newHost(t)
	dir := filepath.Dir(h.write("root/etc/who", "from a directory\n"))
	dir = filepath.Dir(dir)
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	if err := tw.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"dir:" + dir, "tar:" + h.write("root.tar", buf.String())} {
		h.ok("image", "pull", ref)
		sb := h.ok("sandbox", "create", ref)
		if got := h.ok("sandbox", "files", "cat", sb+":/etc/who"); got != "from a directory" {
			t.Errorf("%s: got %q", ref, got)
		}
		h.fails(2, "cannot execute", "exec", sb, "--", "sh")
	}
}
