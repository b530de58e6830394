package image

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
)

// source describes the image that a job with network access fetches. It is sent over a pipe, including the password.
type source struct {
	Reference string // reference in the form that Canonical returns
	Platform  string // platform of the image, such as linux/amd64
	Username  string
	Password  string
	Local     bool       // the caller is on this host, so that the job may connect to every address that the host can reach
	Plain     []string   // registries, see Config.InsecureRegistries, that may be used without TLS and at private addresses
	CA        string     // certificate authorities, as PEM, to trust in addition to the host's
	Own       reach.Host // determines which addresses belong to this host
}

// resolved is the description of an image by its registry. It is untrusted until checkResolved and checkConfig have validated it.
type resolved struct {
	Digest string        // digest of the manifest
	Layers []remoteLayer // layers from bottom to top
	Config rawConfig     // the used part of the image's configuration
}

// remoteLayer describes a layer of an image in a registry.
type remoteLayer struct {
	Digest string // digest of the blob
	DiffID string // digest of the uncompressed archive
	Size   int64  // size of the blob in bytes
}

// rawConfig is the used part of an image's configuration, before checkConfig has validated it.
type rawConfig struct {
	Env        []string
	Entrypoint []string
	Cmd        []string
	WorkingDir string
	User       string
}

// resolve requests the description of an image for one platform.
func resolve(ctx context.Context, src source) (*resolved, error) {
	ref, opts, err := src.open(ctx)
	if err != nil {
		return nil, err
	}
	platform, err := v1.ParsePlatform(src.Platform)
	if err != nil {
		return nil, err
	}
	desc, err := remote.Get(ref, append(opts, remote.WithPlatform(*platform))...)
	if err != nil {
		return nil, err
	}
	if !desc.MediaType.IsImage() && !desc.MediaType.IsIndex() {
		return nil, caisson.Errorf(caisson.Invalid, "%.200s is not an image but a %.80q", src.Reference, desc.MediaType)
	}
	img, err := desc.Image()
	if err != nil {
		if desc.MediaType.IsIndex() && strings.Contains(err.Error(), "no child with platform") {
			return nil, caisson.Errorf(caisson.NotFound, "%.200s has no image for %s", src.Reference, src.Platform)
		}
		return nil, err
	}
	return describe(img, *platform, src.Reference)
}

// describe returns the digest, the layers and the configuration of an image.
func describe(img v1.Image, platform v1.Platform, ref string) (*resolved, error) {
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	manifest, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	if manifest.Config.Size > maxConfig {
		return nil, caisson.Errorf(caisson.Exhausted, "the configuration of %.200s is larger than %v", ref, caisson.Size(maxConfig))
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	if config.OS != platform.OS || config.Architecture != platform.Architecture {
		return nil, caisson.Errorf(caisson.NotFound, "%.200s is an image for %.40s/%.40s, not for %s", ref, config.OS, config.Architecture, platform)
	}
	if len(config.RootFS.DiffIDs) != len(manifest.Layers) {
		return nil, caisson.Errorf(caisson.Invalid, "%.200s lists %d layers but describes %d", ref, len(manifest.Layers), len(config.RootFS.DiffIDs))
	}
	if len(manifest.Layers) > maxLayers {
		return nil, caisson.Errorf(caisson.Exhausted, "%.200s has %d layers; %d are possible", ref, len(manifest.Layers), maxLayers)
	}
	r := &resolved{Digest: digest.String(), Config: rawConfig{Env: config.Config.Env, Entrypoint: config.Config.Entrypoint,
		Cmd: config.Config.Cmd, WorkingDir: config.Config.WorkingDir, User: config.Config.User}}
	for i, l := range manifest.Layers {
		if !l.MediaType.IsDistributable() {
			return nil, caisson.Errorf(caisson.Invalid, "%.200s has a layer that may not be distributed by registries (%.80q)", ref, l.MediaType)
		}
		r.Layers = append(r.Layers, remoteLayer{Digest: l.Digest.String(), DiffID: config.RootFS.DiffIDs[i].String(), Size: l.Size})
	}
	return r, nil
}

// fetchArgs are the arguments of a job that writes one blob to the first of its descriptors.
type fetchArgs struct {
	Source source // the image, and how to reach its registry
	Digest string // digest of the blob
	Size   int64  // size of the blob in bytes
}

// fetch fetches a blob and writes it to out. It checks that the length of the blob is args.Size, but not its digest, which
// fetchLayer compares.
func fetch(ctx context.Context, args fetchArgs, out io.Writer) error {
	ref, opts, err := args.Source.open(ctx)
	if err != nil {
		return err
	}
	layer, err := remote.Layer(ref.Context().Digest(args.Digest), opts...)
	if err != nil {
		return err
	}
	body, err := layer.Compressed()
	if err != nil {
		return err
	}
	defer body.Close()
	n, err := io.Copy(out, io.LimitReader(body, args.Size+1))
	if err == nil && n != args.Size {
		err = caisson.Errorf(caisson.Invalid, "the registry announced a layer of %d bytes but sent a different number of bytes", args.Size)
	}
	return err
}

// open returns the parsed reference of s and the options for requests to its registry: login, TLS and the addresses that are
// allowed.
func (s source) open(ctx context.Context) (name.Reference, []remote.Option, error) {
	ref, err := name.ParseReference(s.Reference)
	if err != nil {
		return nil, nil, err
	}
	host := ref.Context().RegistryStr()
	plain := s.Local && isLoopback(host) || slices.Contains(s.Plain, host)
	if plain {
		if ref, err = name.ParseReference(s.Reference, name.Insecure); err != nil {
			return nil, nil, err
		}
	}
	transport, err := s.transport(host, plain)
	if err != nil {
		return nil, nil, err
	}
	auth := authn.Anonymous
	if s.Username != "" || s.Password != "" {
		auth = &authn.Basic{Username: s.Username, Password: s.Password}
	}
	opts := []remote.Option{
		remote.WithContext(ctx), remote.WithAuth(auth), remote.WithUserAgent("caisson"), remote.WithJobs(2),
		remote.WithTransport(transport),
	}
	return ref, opts, nil
}

// requireTLS is a RoundTripper that refuses requests without TLS, regardless of their origin: the library, a redirect, or the
// realm of an authentication challenge.
type requireTLS struct {
	next         http.RoundTripper // sends the requests that are not refused
	insecureHost string            // the only host[:port] that may be used without TLS, or ""
}

// RoundTrip sends r. Returns Denied if r would be sent without TLS to a host other than insecureHost.
func (g requireTLS) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && (g.insecureHost == "" || r.URL.Host != g.insecureHost) {
		return nil, caisson.Errorf(caisson.Denied, "%.200s would be used without TLS", r.URL.Host)
	}
	return g.next.RoundTrip(r)
}

// transport returns the RoundTripper for a pull from the registry host[:port]. plain means that requests to this host may be
// made without TLS.
func (s source) transport(host string, plain bool) (http.RoundTripper, error) {
	trusted, err := s.authorities()
	if err != nil {
		return nil, err
	}
	g := requireTLS{next: &http.Transport{
		DialContext:           s.dialer(host),
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   20 * time.Second,
		ResponseHeaderTimeout: time.Minute,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: trusted},
	}}
	if plain {
		g.insecureHost = host
	}
	return g, nil
}

// registryError converts an error of a request to a registry to a caisson.Error.
func registryError(err error, ref string) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*caisson.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return caisson.Wrap(err, caisson.Unavailable, "the registry of %.200s cannot be trusted (%.120s); if you operate its certificate authority, configure that as registryCA", ref, e.Err)
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		switch e.StatusCode {
		case http.StatusUnauthorized:
			return caisson.Wrap(err, caisson.Denied, "the registry requires a login for %.200s, or the given login is wrong", ref)
		case http.StatusForbidden:
			return caisson.Wrap(err, caisson.Denied, "the registry denies access to %.200s", ref)
		case http.StatusNotFound:
			return caisson.Wrap(err, caisson.NotFound, "the registry has no %.200s", ref)
		case http.StatusTooManyRequests:
			return caisson.Wrap(err, caisson.Exhausted, "the registry limits the rate of requests; try %.200s later", ref)
		}
		return caisson.Wrap(err, caisson.Unavailable, "the registry answered %.200s with status %d", ref, e.StatusCode)
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		return caisson.Wrap(err, caisson.Unavailable, "the registry of %.200s does not use TLS; to allow that, list it in insecureRegistries", ref)
	}
	if e, ok := errors.AsType[net.Error](err); ok {
		return caisson.Wrap(err, caisson.Unavailable, "the registry of %.200s cannot be reached: %s", ref, networkReason(e))
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return caisson.Wrap(err, caisson.Unavailable, "the registry of %.200s broke off; try again", ref)
	}
	if errors.Is(err, syscall.EPIPE) {
		return err // the job that unpacks what this job writes to a pipe has failed; users see that job's error
	}
	return caisson.Wrap(err, caisson.Invalid, "the registry's answer about %.200s makes no sense", ref)
}

// networkReason returns a short description of a network error for a user.
func networkReason(err error) string {
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &dns):
		return fmt.Sprintf("no address for %.80q", dns.Name)
	case errors.As(err, &op):
		return op.Err.Error()
	}
	return "no answer"
}
