package client

import (
	"context"
	"net/http"
	"os"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// images implements [caisson.Images] by requests to a daemon.
type images struct{ c *requester }

// Pull implements [caisson.Images]. If the reference begins with dir: or tar: and req.Source is nil, it opens the directory or
// archive with the rights of this process and passes it to the daemon, which is possible only over the unix socket.
func (i images) Pull(ctx context.Context, req caisson.PullRequest, progress func(caisson.Progress)) (*caisson.Image, error) {
	header := http.Header{}
	source := req.Source
	if kind, path, ok := strings.Cut(req.Reference, ":"); ok && (kind == "dir" || kind == "tar") && source == nil && !req.Offline {
		if i.c.socket == "" {
			return nil, errHostPath()
		}
		f, err := os.Open(path)
		if err != nil {
			return nil, caisson.Wrap(err, caisson.Invalid, "reference: cannot open %s", path)
		}
		source = f
	}
	if source != nil {
		if err := i.c.passHandles(ctx, []caisson.Handle{source}, header); err != nil {
			return nil, err
		}
	}
	in := protocol.PullRequest{Reference: req.Reference, Platform: req.Platform, Auth: protocol.LoginOf(req.Auth), Offline: req.Offline}
	return callWithProgress[*caisson.Image](ctx, i.c, post(in, "images", "pull").withHeader(header), progress)
}

// ListImages implements [caisson.Images].
func (i images) ListImages(ctx context.Context) ([]*caisson.Image, error) {
	return callList[*caisson.Image](ctx, i.c, get("images"))
}

// RemoveImage implements [caisson.Images].
func (i images) RemoveImage(ctx context.Context, ref string) error {
	return i.c.do(ctx, remove("images").withParam("reference", ref))
}

// PruneImages implements [caisson.Images].
func (i images) PruneImages(ctx context.Context) (caisson.Size, error) {
	freed, err := call[protocol.Freed](ctx, i.c, post(nil, "images", "prune"))
	return freed.Size, err
}
