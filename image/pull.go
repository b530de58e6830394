package image

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/worker"
)

// HostReference is the reference of the host image.
const HostReference = "host"

// Canonical returns the form of a reference under which an image is stored: host, dir:PATH and tar:PATH stay as they are,
// OCI references get their registry and tag. Errors are Invalid.
func Canonical(ref string) (string, error) {
	if ref == HostReference || isPath(ref) {
		if len(ref) > maxPath || !plain(ref) {
			return "", caisson.Invalidf("image", "%.80q is not a path", ref)
		}
		return ref, nil
	}
	return parseReference(ref)
}

func isPath(ref string) bool { return strings.HasPrefix(ref, "dir:") || strings.HasPrefix(ref, "tar:") }

// Pull makes the image of req present for account and returns it. req.Source is closed in any case; progress may be nil,
// and is called by one goroutine at a time.
//
// Errors: Invalid for references, platforms and images that make no sense; NotFound if there is no such image, or it would
// have to be fetched and req says not to; Denied if the registry wants another login, for host paths without a descriptor,
// or for a registry that a caller who is not local may not reach; Exhausted if a limit or the disk is reached; Unavailable if the registry cannot be reached.
func (d *Driver) Pull(ctx context.Context, req caisson.PullRequest, account string, progress func(caisson.Progress)) (*caisson.Image, error) {
	if req.Source != nil {
		defer req.Source.Close()
	}
	if !accountForm.MatchString(account) {
		return nil, caisson.Errorf(caisson.Invalid, "%.40q is not an account", account)
	}
	ref, err := Canonical(req.Reference)
	if err != nil {
		return nil, err
	}
	report := serialised(progress)
	switch {
	case ref == HostReference:
		return d.host.image(ctx)
	case isPath(ref) && req.Source == nil:
		return nil, caisson.Errorf(caisson.Denied, "host paths are accepted only over the unix socket")
	case strings.HasPrefix(ref, "dir:"):
		return d.pullDir(ctx, ref, req.Source, account, report)
	case strings.HasPrefix(ref, "tar:"):
		return d.pullTar(ctx, ref, req.Source, account, report)
	case req.Offline:
		return nil, caisson.Errorf(caisson.NotFound, "the image %s is not on this host; pull it first", ref)
	}
	platform, err := parsePlatform(req.Platform)
	if err != nil {
		return nil, err
	}
	ca, err := readCA(d.registryCA)
	if err != nil {
		return nil, err
	}
	src := source{Reference: ref, Platform: platform, Username: req.Auth.Username, Password: req.Auth.Password.Reveal(),
		Local: req.Local, Plain: d.insecure, CA: ca, Own: d.own}
	return d.pullRemote(ctx, src, account, report)
}

// serialised returns a progress that any goroutine may call.
func serialised(progress func(caisson.Progress)) func(caisson.Progress) {
	if progress == nil {
		return func(caisson.Progress) {}
	}
	var mu sync.Mutex
	return func(p caisson.Progress) {
		mu.Lock()
		defer mu.Unlock()
		progress(p)
	}
}

func (d *Driver) pullRemote(ctx context.Context, src source, account string, report func(caisson.Progress)) (*caisson.Image, error) {
	report(caisson.Progress{Stage: "resolve", Detail: src.Reference})
	found, err := jobResolve.Run(ctx, d.worker, src, worker.Given{})
	if err != nil {
		return nil, err
	}
	if err := checkResolved(&found, d.maxIn); err != nil {
		return nil, err
	}
	config, err := checkConfig(found.Config)
	if err != nil {
		return nil, err
	}
	release := d.layers.hold()
	defer release()
	p := &pull{driver: d, src: src, account: account, report: report}
	layers, err := p.layers(ctx, found.Layers)
	if err != nil {
		return nil, err
	}
	return assemble(src.Reference, found.Digest, account, layers, config)
}

// assemble makes an image of layers, bottom first.
func assemble(ref, digest, account string, layers []Layer, config caisson.ImageConfig) (*caisson.Image, error) {
	img := &caisson.Image{Reference: ref, Digest: digest, Account: account, CreatedAt: time.Now().UTC()}
	img.UsedAt = img.CreatedAt
	counted := map[string]bool{}
	for _, l := range slices.Backward(layers) {
		img.Layers = append(img.Layers, l.Digest)
		img.Rootfs.Layers = append(img.Rootfs.Layers, l.Path)
		if !counted[l.Digest] {
			img.Size += l.Size
		}
		counted[l.Digest] = true
	}
	img.Rootfs.Config = config
	key, err := json.Marshal(img.Layers)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "digest of %s", ref)
	}
	sum := sha256.New()
	sum.Write(key)
	img.Rootfs.Digest = digestOf(sum)
	return img, nil
}

// pull is one image on its way.
type pull struct {
	driver  *Driver
	src     source
	account string
	report  func(caisson.Progress)
	used    atomic.Int64 // bytes of the layers that are done
}

// layers makes each layer present, several at a time. An image may list one layer more than once (the empty one, mostly);
// the overlay must have it once only, where it is on top.
func (p *pull) layers(ctx context.Context, remote []remoteLayer) ([]Layer, error) {
	var unique []remoteLayer
	for i, l := range remote {
		again := slices.ContainsFunc(remote[i+1:], func(other remoteLayer) bool { return other.DiffID == l.DiffID })
		if !again {
			unique = append(unique, l)
		}
	}
	result := make([]Layer, len(unique))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(pipelines)
	for i, l := range unique {
		g.Go(func() error {
			var err error
			result[i], err = p.layer(ctx, l)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if p.used.Load() > p.driver.maxOut {
		return nil, caisson.Errorf(caisson.Exhausted, "the image unpacks to more than allowed (%v)", caisson.Size(p.driver.maxOut))
	}
	return result, nil
}

// layer makes one layer present and p.account an owner of it. Whoever else wants the same layer meanwhile waits, and looks
// again when this is over.
func (p *pull) layer(ctx context.Context, r remoteLayer) (Layer, error) {
	d := p.driver
	for {
		l, wait, err := d.layers.claim(r.DiffID, p.account)
		switch {
		case err != nil:
			return Layer{}, err
		case wait == nil && l.Path != "":
			p.used.Add(int64(l.Size))
			return l, nil
		case wait == nil:
			l, err := p.work(ctx, r)
			d.layers.land(r.DiffID)
			p.used.Add(int64(l.Size))
			return l, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return Layer{}, ctx.Err()
		}
	}
}

// work fetches a layer and unpacks it, or only verifies it if it is there already and the account has yet to show that it
// can have it.
func (p *pull) work(ctx context.Context, r remoteLayer) (Layer, error) {
	d := p.driver
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	case <-ctx.Done():
		return Layer{}, ctx.Err()
	}
	there, ok, err := d.layers.find(r.DiffID)
	if err != nil {
		return Layer{}, err
	}
	args := unpackArgs{MaxIn: r.Size, MaxOut: d.maxOut - p.used.Load(), MaxEntries: maxEntries, VerifyOnly: ok}
	var dir string
	if !ok {
		var done func()
		if dir, done, err = d.layers.tempDir(); err != nil {
			return Layer{}, stored(err)
		}
		defer done()
	}
	result, err := p.stream(ctx, r, dir, args)
	if err != nil {
		return Layer{}, err
	}
	if result.In != r.Digest || result.DiffID != r.DiffID {
		return Layer{}, caisson.Errorf(caisson.Invalid, "a layer of %s is not what its digest says; the registry or the way to it is not to be trusted", p.src.Reference)
	}
	if !ok {
		d.warn(p.src.Reference, result.Warnings)
		if there, err = d.layers.publish(dir, Layer{Digest: r.DiffID, Size: caisson.Size(result.Size), Entries: result.Entries}); err != nil {
			return Layer{}, stored(err)
		}
	}
	return there, stored(d.layers.setOwner(p.account, r.DiffID))
}

// stored gives an error of the driver's own disk a kind.
func stored(err error) error {
	if err = diskError(err); err == nil {
		return nil
	}
	if _, ok := errors.AsType[*caisson.Error](err); ok {
		return err
	}
	return caisson.Wrap(err, caisson.Internal, "cannot store a layer")
}

func (d *Driver) warn(ref string, warnings []string) {
	for _, w := range warnings[:min(len(warnings), maxWarnings)] {
		d.log.Warn("an image was not unpacked entirely", "image", ref, "what", w)
	}
}

// stream runs two jobs, one that fetches and one that unpacks, with a pipe between them.
func (p *pull) stream(ctx context.Context, r remoteLayer, dir string, args unpackArgs) (*unpacked, error) {
	from, to, err := os.Pipe()
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot make a pipe")
	}
	fetch := func(ctx context.Context) error {
		_, err := jobFetch.Run(ctx, p.driver.worker, fetchArgs{Source: p.src, Digest: r.Digest, Size: r.Size}, worker.Given{Files: []*os.File{to}})
		return err
	}
	return p.driver.pipe(ctx, fetch, to, from, dir, args, func(n int64) {
		p.report(caisson.Progress{Stage: "pull", Detail: r.DiffID, Done: n, Total: r.Size})
	})
}

// pipe runs write, whose job writes an archive to to, and unpacks from into dir. It closes both ends. If both fail,
// the error is the cause, not the consequence.
func (d *Driver) pipe(ctx context.Context, write func(context.Context) error, to, from *os.File, dir string, args unpackArgs, report func(int64)) (*unpacked, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	written := make(chan error, 1)
	go func() {
		written <- write(ctx)
		to.Close() // only now, so that whoever sees the end can know why
	}()
	result, err := d.runUnpack(ctx, from, dir, args, report)
	from.Close()
	var werr error
	select {
	case werr = <-written:
	default:
		if err != nil {
			cancel()
			<-written
			return nil, err
		}
		werr = <-written
	}
	if werr != nil && !brokenPipe(werr) {
		return nil, werr
	}
	return result, err
}

// brokenPipe reports whether a job failed only because nobody read on.
func brokenPipe(err error) bool {
	return caisson.KindOf(err) == caisson.Internal && strings.Contains(err.Error(), syscall.EPIPE.Error())
}

// runUnpack unpacks in into dir with a job; with dir "" nothing is made.
func (d *Driver) runUnpack(ctx context.Context, in *os.File, dir string, args unpackArgs, report func(int64)) (*unpacked, error) {
	given := worker.Given{Input: in, Limits: worker.Limits{FileSize: args.MaxOut}, Progress: func(raw json.RawMessage) {
		var r received
		if json.Unmarshal(raw, &r) == nil {
			report(r.Bytes)
		}
	}}
	if dir != "" {
		root, err := os.Open(dir)
		if err != nil {
			return nil, caisson.Wrap(err, caisson.Internal, "cannot open a layer")
		}
		defer root.Close()
		given.Root = root
	}
	result, err := jobUnpack.Run(ctx, d.worker, args, given)
	return &result, err
}
