package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// imageCmd contains the commands that manage images.
type imageCmd struct {
	Ls    imageLsCmd    `cmd:"" help:"List images."`
	Pull  imagePullCmd  `cmd:"" help:"Pull an image."`
	Rm    imageRmCmd    `cmd:"" help:"Remove images."`
	Prune imagePruneCmd `cmd:"" help:"Remove unused images."`
}

// registryLogin are the flags for a login to a registry. Without them the logins of "docker login" are used.
type registryLogin struct {
	Username      string `help:"User name at the registry; the default is the logins of ~/.docker/config.json." placeholder:"NAME"`
	PasswordStdin bool   `help:"Read the password from standard input."`
}

// auth returns the login for the registry of the image ref: that of the flags, or else that of "docker login". It is zero for an
// anonymous pull.
func (l registryLogin) auth(a *app, ref string) (caisson.RegistryAuth, error) {
	var none caisson.RegistryAuth
	if (l.Username == "") == l.PasswordStdin {
		return none, usagef("image pull", "--username and --password-stdin belong together")
	}
	if l.PasswordStdin {
		line, err := bufio.NewReader(io.LimitReader(a.in, 1<<16)).ReadString('\n')
		if err != nil && err != io.EOF {
			return none, err
		}
		return caisson.RegistryAuth{Username: l.Username, Password: caisson.NewSecret(strings.TrimRight(line, "\r\n"))}, nil
	}
	if ref == caisson.HostTemplate || isPathImage(ref) {
		return none, nil
	}
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return none, caisson.Invalidf("reference", "%.200q is not an image reference; write for example debian:12", ref)
	}
	login, err := authn.DefaultKeychain.Resolve(parsed.Context())
	if err != nil {
		return none, caisson.Errorf(caisson.Unavailable, "read the registry logins of docker: %v", err)
	}
	cfg, err := login.Authorization()
	if err != nil {
		return none, caisson.Errorf(caisson.Unavailable, "read the registry logins of docker: %v", err)
	}
	if cfg.Username == "" || cfg.Password == "" {
		return none, nil // pull anonymously: identity tokens that docker may have stored are not supported
	}
	return caisson.RegistryAuth{Username: cfg.Username, Password: caisson.NewSecret(cfg.Password)}, nil
}

// isPathImage reports whether ref refers to a directory or an archive of this machine.
func isPathImage(ref string) bool {
	return strings.HasPrefix(ref, "dir:") || strings.HasPrefix(ref, "tar:")
}

// ensureImage pulls an image, without a request to its registry if it is already stored.
func ensureImage(ctx context.Context, a *app, api api, ref string, l registryLogin) (*caisson.Image, error) {
	if !isPathImage(ref) {
		img, err := api.Pull(ctx, caisson.PullRequest{Reference: ref, Offline: true}, nil)
		if caisson.KindOf(err) != caisson.NotFound {
			return img, err
		}
	}
	return pullImage(ctx, a, api, caisson.PullRequest{Reference: ref}, l)
}

// pullImage pulls an image and shows the progress. This process opens the directory or archive of a dir: or tar: reference, with
// the rights of the user who runs the command.
func pullImage(ctx context.Context, a *app, api api, req caisson.PullRequest, l registryLogin) (*caisson.Image, error) {
	var err error
	if req.Auth, err = l.auth(a, req.Reference); err != nil {
		return nil, err
	}
	if isPathImage(req.Reference) {
		if !a.overSocket() {
			return nil, caisson.Invalidf("reference", "a daemon elsewhere cannot see files of this machine; push the image to a registry")
		}
		scheme, path := req.Reference[:4], req.Reference[4:]
		if path, err = absFrom(".", path); err != nil {
			return nil, err
		}
		f, err := openImage(scheme, path)
		if err != nil {
			return nil, localError("reference", path, err)
		}
		req.Reference, req.Source = scheme+path, f
	}
	p := newProgress(a)
	defer p.end()
	return api.Pull(ctx, req, p.update)
}

// openImage opens the image at path: a directory if scheme is "dir:", an archive if it is "tar:".
func openImage(scheme, path string) (*os.File, error) {
	if scheme == "dir:" {
		return os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO must not block
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "open", Path: path, Err: unix.EINVAL}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// imageRef returns the reference by which an image was pulled.
func imageRef(i *caisson.Image) string { return i.Reference }

// imageDigest returns the digest by which an image is identified.
func imageDigest(i *caisson.Image) string { return i.Digest }

// imageLsCmd lists images.
type imageLsCmd struct{}

func (c *imageLsCmd) Help() string { return examples("caisson image ls", "caisson image ls -o json") }

func (c *imageLsCmd) Run(ctx context.Context, a *app, api api) error {
	return asList(a, []column[*caisson.Image]{
		{name: "REFERENCE", value: imageRef},
		{name: "DIGEST", value: func(i *caisson.Image) string { return shortDigest(i.Digest) }},
		{name: "SIZE", value: func(i *caisson.Image) string { return i.Size.String() }},
		{name: "LAYERS", value: func(i *caisson.Image) string { return strconv.Itoa(len(i.Layers)) }},
		{name: "USED", value: func(i *caisson.Image) string {
			if i.UsedAt.IsZero() {
				return ""
			}
			return age(i.UsedAt) + " ago"
		}},
	})(api.ListImages(ctx))
}

// shortDigest returns a SHA-256 digest with only its first twelve hexadecimal digits.
func shortDigest(d string) string {
	const n = len("sha256:") + 12
	if len(d) > n && strings.HasPrefix(d, "sha256:") {
		return d[:n]
	}
	return d
}

// imagePullCmd pulls an image.
type imagePullCmd struct {
	Reference string `arg:"" help:"debian:12, registry/name@sha256:…, dir:PATH, tar:PATH or host." complete:"image"`
	Platform  string `help:"os/arch[/variant]; default this machine's." placeholder:"PLATFORM"`
	Offline   bool   `help:"Only check whether the image is stored."`
	registryLogin
}

func (c *imagePullCmd) Help() string {
	return examples("caisson image pull debian:12", "caisson image pull dir:./rootfs",
		"caisson image pull --username me --password-stdin registry.example/team/app:1 < password")
}

func (c *imagePullCmd) Run(ctx context.Context, a *app, api api) error {
	req := caisson.PullRequest{Reference: c.Reference, Platform: c.Platform, Offline: c.Offline}
	return asDone(a, imageDigest)(pullImage(ctx, a, api, req, c.registryLogin))
}

// imageRmCmd removes images.
type imageRmCmd struct {
	Reference []string `arg:"" help:"References." complete:"image"`
}

func (c *imageRmCmd) Help() string { return examples("caisson image rm debian:12") }

func (c *imageRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Reference, api.RemoveImage)
}

// imagePruneCmd removes images that nothing uses.
type imagePruneCmd struct{}

func (c *imagePruneCmd) Help() string { return examples("caisson image prune") }

// freedSpace is the output of image prune with -o json.
type freedSpace struct {
	Freed caisson.Size `json:"freed"` // size of the removed images in bytes
}

func (c *imagePruneCmd) Run(ctx context.Context, a *app, api api) error {
	n, err := api.PruneImages(ctx)
	if err != nil {
		return err
	}
	return printDone(a, freedSpace{n}, "freed "+n.String())
}
