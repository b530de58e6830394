// Package serve answers git clients that clone or fetch from a store.
package serve

import (
	"bytes"
	"context"
	"io"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/excerpt"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/remote"
)

// A Request is one request of a git client to a store.
type Request struct {
	Advertise bool          // true for GET /info/refs?service=git-upload-pack, false for POST /git-upload-pack
	Protocol  string        // value of the header Git-Protocol: "", or "version=" and 0, 1 or 2
	Time      time.Duration // time limit; 0 means 1 hour
}

// maxServeRequest limits the body of a request in bytes; it takes 50 bytes for each commit that the client wants or has.
const maxServeRequest = 32 << 20

// serve answers one request to the repository s over the connection p, and closes p. The answer is the body of a smart HTTP
// response, including the line that names the service. Errors are returned, and also reported to the client in git's format.
func serve(ctx context.Context, s git.Repo, p *git.ClientConn, req Request) error {
	defer p.Finish()
	err := upload(ctx, s, p, req)
	if err != nil && !p.Wrote {
		_ = git.WritePktf(p, "ERR %s\n", git.OneLine(caisson.MessageOf(err), 300))
	}
	return err
}

// upload runs git upload-pack for one request.
func upload(ctx context.Context, s git.Repo, p *git.ClientConn, req Request) error {
	if !remote.ValidProtocol(req.Protocol) {
		return caisson.Invalidf("protocol", "%.40q is no version of git's protocol", req.Protocol)
	}
	args := []string{"upload-pack", "--strict", "--stateless-rpc"}
	var in []byte
	if req.Advertise {
		args = append(args, "--http-backend-info-refs")
		if req.Protocol != "version=2" {
			if err := writeService(p, remote.UploadPack); err != nil {
				return err
			}
		}
	} else {
		r, err := git.Body(p, maxServeRequest)
		if err != nil {
			return git.RequestError(err)
		}
		if in, err = io.ReadAll(r); err != nil {
			return git.RequestError(err)
		}
	}
	watched, stop, err := p.Watch(ctx)
	if err != nil {
		return err
	}
	defer stop()
	cmd := s.With("GIT_PROTOCOL="+req.Protocol).Git(watched, append(args, "--", s.Dir)...)
	cmd.Stdin = bytes.NewReader(in)
	cmd.Stdout = p
	said := &excerpt.Tail{Limit: git.MaxGitErrors}
	cmd.Stderr = said
	err = cmd.Run()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case watched.Err() != nil, p.PeerClosed():
		return nil // the client has closed the connection
	}
	if text := said.String(); strings.Contains(text, "fatal: ") && !strings.Contains(text, "out of memory") {
		return caisson.Errorf(caisson.Invalid, "git cannot serve this: %s", git.ErrorLines(text, 200))
	}
	return git.GitError("upload-pack", said, err)
}

// writeService writes the first line of a smart HTTP list of refs in protocol versions 0 and 1.
func writeService(w io.Writer, service string) error {
	if err := git.WritePktf(w, "# service=%s\n", service); err != nil {
		return err
	}
	return git.WriteFlush(w)
}
