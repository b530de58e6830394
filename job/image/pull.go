package image

import (
	"context"
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
	"github.com/caisson-dev/caisson/job/worker"
)

// hostReference is the reference of the host image.
const hostReference = "host"

// Canonical returns the form of a reference under which an image is stored: "host", "dir:PATH" and "tar:PATH" are returned
// unchanged, OCI references are completed with registry and tag. Returns Invalid if ref is malformed.
func Canonical(ref string) (string, error) {
	if ref == hostReference || isHostPath(ref) {
		if len(ref) > maxPath || !isPrintable(ref) {
			return "", caisson.Invalidf("image", "%.80q is not a path", ref)
		}
		return ref, nil
	}
	return parseReference(ref)
}

// isHostPath reports whether ref refers to a directory or an archive of the host.
func isHostPath(ref string) bool {
	return strings.HasPrefix(ref, "dir:") || strings.HasPrefix(ref, "tar:")
}

// Pull stores the layers of the image that req describes, records account as their owner, and returns the image. req.Source
// is always closed. progress may be nil; it is never called concurrently.
//
// Errors: Invalid for malformed references, platforms and images; NotFound if the image does not exist, or if it would have
// to be fetched and req.Offline is set; Denied if the registry rejects the login, for host paths without a descriptor, or
// for a registry that remote callers may not use; Exhausted if a limit is exceeded or the disk is full; Unavailable if the
// registry cannot be reached.
func (d *Driver) Pull(ctx context.Context, req caisson.PullRequest, account string, progress func(caisson.Progress)) (*caisson.Image, error) {
	if req.Source != nil {
		defer req.Source.Close()
	}
	if !caisson.ValidAccountName(account) {
		return nil, caisson.Errorf(caisson.Invalid, "%.40q is not an account", account)
	}
	ref, err := Canonical(req.Reference)
	if err != nil {
		return nil, err
	}
	report := serialiseCalls(progress)
	switch {
	case ref == hostReference:
		return d.host.image(ctx)
	case isHostPath(ref) && req.Source == nil:
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
		Local: req.Local, Plain: d.insecure, CA: ca, Own: d.ownAddresses}
	return d.pullRemote(ctx, src, account, report)
}

// serialiseCalls returns a function that may be called concurrently and calls progress under a lock. progress may be nil.
func serialiseCalls(progress func(caisson.Progress)) func(caisson.Progress) {
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

// pullRemote pulls the image that src describes from its registry.
func (d *Driver) pullRemote(ctx context.Context, src source, account string, report func(caisson.Progress)) (*caisson.Image, error) {
	report(caisson.Progress{Stage: "resolve", Detail: src.Reference})
	found, err := jobResolve.Run(ctx, d.worker, src, worker.RunInput{})
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

// assemble returns the image that consists of layers, which are listed from bottom to top.
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
	img.Rootfs.Digest = digestOfBytes(key)
	return img, nil
}

// pull is one pull of an image from a registry.
type pull struct {
	driver  *Driver                // the driver that pulls the image
	src     source                 // the image, and how to reach its registry
	account string                 // account that pulls the image
	report  func(caisson.Progress) // called with the progress
	used    atomic.Int64           // size in bytes of the layers that are finished so far, unpacked
}

// layers fetches the missing layers, at most maxParallelLayers of them concurrently. It returns the layers from bottom to top.
// An image may list a layer more than once (mostly the empty layer), but an overlay may contain it only once, so only its
// topmost position is returned.
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
	g.SetLimit(maxParallelLayers)
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

// layer returns one layer of which p.account is an owner. It fetches the layer unless the layer is present and p.account owns
// it already. If another pull is fetching the same layer, layer waits until that is finished and then checks again.
func (p *pull) layer(ctx context.Context, r remoteLayer) (Layer, error) {
	d := p.driver
	for {
		l, wait, err := d.layers.findOrBegin(r.DiffID, p.account)
		switch {
		case err != nil:
			return Layer{}, err
		case wait == nil && l.Path != "":
			p.used.Add(int64(l.Size))
			return l, nil
		case wait == nil:
			l, err := p.fetchLayer(ctx, r)
			d.layers.finish(r.DiffID)
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

// fetchLayer fetches a layer and unpacks it. If the layer is present already, fetchLayer only verifies the digests of the
// fetched bytes, which proves that the account has access to the layer.
func (p *pull) fetchLayer(ctx context.Context, r remoteLayer) (Layer, error) {
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
			return Layer{}, storeError(err)
		}
		defer done()
	}
	result, err := p.stream(ctx, r, dir, args)
	if err != nil {
		return Layer{}, err
	}
	if result.In != r.Digest || result.DiffID != r.DiffID {
		return Layer{}, caisson.Errorf(caisson.Invalid, "the content of a layer of %s does not match its digest; the registry or the connection to it cannot be trusted", p.src.Reference)
	}
	if !ok {
		d.warn(p.src.Reference, result.Warnings)
		if there, err = d.layers.publish(dir, Layer{Digest: r.DiffID, Size: caisson.Size(result.Size), Entries: result.Entries}); err != nil {
			return Layer{}, storeError(err)
		}
	}
	return there, storeError(d.layers.setOwner(p.account, r.DiffID))
}

// storeError converts an error of storing a layer on the driver's disk to a caisson.Error.
func storeError(err error) error {
	if err = diskError(err); err == nil {
		return nil
	}
	if _, ok := errors.AsType[*caisson.Error](err); ok {
		return err
	}
	return caisson.Wrap(err, caisson.Internal, "cannot store a layer")
}

// warn logs the warnings of unpacking a layer of the image ref.
func (d *Driver) warn(ref string, warnings []string) {
	for _, w := range warnings[:min(len(warnings), maxWarnings)] {
		d.log.Warn("an image was not unpacked completely", "image", ref, "what", w)
	}
}

// stream runs two jobs with a pipe between them: one fetches the layer r, and the other one unpacks it into dir.
func (p *pull) stream(ctx context.Context, r remoteLayer, dir string, args unpackArgs) (*unpackResult, error) {
	from, to, err := os.Pipe()
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "cannot create a pipe")
	}
	fetch := func(ctx context.Context) error {
		_, err := jobFetch.Run(ctx, p.driver.worker, fetchArgs{Source: p.src, Digest: r.Digest, Size: r.Size}, worker.RunInput{Files: []*os.File{to}})
		return err
	}
	return p.driver.pipe(ctx, fetch, to, from, dir, args, func(n int64) {
		p.report(caisson.Progress{Stage: "pull", Detail: r.DiffID, Done: n, Total: r.Size})
	})
}

// pipe runs write, which runs a job that writes an archive to the file to, and a second job that unpacks the archive from the
// file from into dir. to and from are the ends of a pipe; pipe closes both. If both jobs fail, the error is that of the job
// that failed first, because the other job fails when the pipe is closed.
func (d *Driver) pipe(ctx context.Context, write func(context.Context) error, to, from *os.File, dir string, args unpackArgs, report func(int64)) (*unpackResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	written := make(chan error, 1)
	go func() {
		written <- write(ctx)
		to.Close() // to is closed last, so that the reader gets EOF only after the result of write is in the channel written
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

// brokenPipe reports whether err means that a job failed because the other end of its pipe was closed.
func brokenPipe(err error) bool {
	return caisson.KindOf(err) == caisson.Internal && strings.Contains(err.Error(), syscall.EPIPE.Error())
}

// runUnpack runs a job that unpacks the archive in the file in into dir. If dir is "", no files are created.
func (d *Driver) runUnpack(ctx context.Context, in *os.File, dir string, args unpackArgs, report func(int64)) (*unpackResult, error) {
	given := worker.RunInput{Input: in, Limits: worker.Limits{FileSize: args.MaxOut}, Progress: func(raw json.RawMessage) {
		var r jobProgress
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
