package prepare

import (
	"context"
	"encoding/binary"
	"io"
	"os"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/internal/socketpair"
	"github.com/caisson-dev/caisson/job/relay/commit"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/worker"
)

// Run makes the commits to deliver from commits that were pushed to store: it rewrites them as req specifies, checks them
// again, and signs them with req.Sign, which runs in this process. Existing signatures on rewritten commits are removed, because
// rewriting invalidates them. It returns a NotFound error if the store does not have the commits, Denied if they must not be
// delivered, and Conflict while a push is in progress.
func Run(ctx context.Context, run worker.Starter, store, view *os.File, req Request) (*Result, error) {
	if err := req.validate(); err != nil {
		return nil, err
	}
	given := worker.RunInput{Root: store, Mounts: git.ViewMount(view)}
	if req.Sign == nil {
		p, err := Job.Run(ctx, run, req, given)
		return &p, err
	}
	near, far, err := socketpair.New()
	if err != nil {
		return nil, err
	}
	defer far.Close()
	given.Files = []*os.File{far}
	done := make(chan error, 1)
	go func() {
		defer near.Close()
		done <- serveSignatures(near, req.Sign)
	}()
	p, err := Job.Run(ctx, run, req, given)
	near.Close()
	if e := <-done; e != nil {
		return nil, e
	}
	return &p, err
}

// Limits of the signing and of the reply of a job.
const (
	maxPayload    = commit.MaxCommitObject + 1<<16 // bytes of a commit that is signed
	maxSubjects   = 4 << 10                        // bytes of all subjects in a reply
	maxSignatures = maxPrepared                    // commits that are signed for one job
)

// Job makes the commits to deliver from those of the store at /work. If it is given a file descriptor, which is a socket, it
// requests signatures over it.
var Job = worker.Job[Request, Result]{
	Name: "relay.prepare", Programs: true, Access: worker.WriteAsOwner,
	Limits: worker.Limits{Time: 15 * time.Minute, CPU: 15 * time.Minute, Memory: 2 << 30, FileSize: 4 << 30},
	Do: func(ctx context.Context, c *worker.Call, req Request) (Result, error) {
		if len(c.Files) > 0 {
			req.Sign = newSignFunc(c.Files[0])
		}
		p, err := prepare(ctx, git.StoreRepo(), req)
		if err == nil {
			p.fit()
		}
		return worker.Value(p, err)
	},
	Valid: func(req Request, p *Result) bool { return p.valid(&req) },
}

// fit shortens the findings and subjects of p, so that p fits into the reply of a job.
func (p *Result) fit() {
	left := commit.MaxReplyBytes / 2 // the other half is for the text of the pull request
	p.Findings = commit.FitFindings(p.Findings, &left)
	left = maxSubjects
	for i := range p.Commits {
		if left -= len(p.Commits[i].Subject); left < 0 {
			p.Commits[i].Subject = ""
		}
	}
}

// valid reports whether p, which comes from an untrusted job, can be the reply to req.
func (p *Result) valid(req *Request) bool {
	if !git.ValidCommit(p.Commit) || len(p.Commit) != len(req.Commit) || len(p.Commits) > maxPrepared || !commit.ValidFindings(p.Findings) || commit.Denied(p.Findings) {
		return false
	}
	for _, c := range p.Commits {
		if !git.ValidCommit(c.ID) || git.OneLine(c.Subject, 200+len("…")) != c.Subject {
			return false
		}
	}
	if len(p.Title) > maxPullTitle+len("…") || git.OneLine(p.Title, maxPullTitle+len("…")) != p.Title ||
		len(p.Text) > maxPullText+len("…") || strings.TrimSpace(safetext.Lines(p.Text)) != p.Text {
		return false
	}
	n := len(p.Commits)
	return n > 0 && p.Commits[n-1].ID == p.Commit || n == 0 && p.Commit == req.Commit
}

// newSignFunc returns a function that sends a payload over conn to the process that has the signing key, and returns the
// signature that it gets as the answer. A payload is sent as its length in four bytes and its bytes. The answer has the same
// form; a length of zero means that there is no signature.
func newSignFunc(conn io.ReadWriter) func([]byte) (string, error) {
	return func(payload []byte) (string, error) {
		if err := writeFrame(conn, payload); err != nil {
			return "", err
		}
		sig, err := readFrame(conn, maxSignature)
		if err != nil {
			return "", err
		}
		if len(sig) == 0 {
			return "", caisson.Errorf(caisson.Internal, "the commit was not signed")
		}
		return string(sig), nil
	}
}

// serveSignatures answers the requests for signatures that a job sends over conn, until conn is closed. It calls sign only for
// payloads that are commits, at most 4,000 times. It returns the error of sign.
func serveSignatures(conn io.ReadWriter, sign func([]byte) (string, error)) error {
	for range maxSignatures {
		payload, err := readFrame(conn, maxPayload)
		if err != nil {
			return nil // the job has ended; if it failed, it returns the reason itself
		}
		if _, err := commit.ParseCommit(payload); err != nil {
			writeFrame(conn, nil)
			return caisson.Errorf(caisson.Internal, "a job of the relay requested a signature for something other than a commit")
		}
		sig, err := sign(payload)
		if err != nil {
			writeFrame(conn, nil)
			return err
		}
		if err := writeFrame(conn, []byte(sig)); err != nil {
			return nil
		}
	}
	return nil
}

// writeFrame writes the length of data in four bytes, and data.
func writeFrame(w io.Writer, data []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
	return err
}

// readFrame reads the length of data in four bytes, and the data, which must have at most limit bytes.
func readFrame(r io.Reader, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > uint32(limit) {
		return nil, caisson.Errorf(caisson.Internal, "%d bytes are too many", n)
	}
	data := make([]byte, n)
	_, err := io.ReadFull(r, data)
	return data, err
}
