package gate

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/caisson-dev/caisson"
	archive "github.com/caisson-dev/caisson/internal/tree"
	"github.com/caisson-dev/caisson/worker"
)

const jobArchive = "gate.archive"

// archiveTime bounds an upload, which is as slow as the client's network.
const archiveTime = 12 * time.Hour

// ArchiveJobs are the jobs that read archives of clients.
func ArchiveJobs() []worker.Job { return []worker.Job{{Name: jobArchive, Run: runArchive}} }

// archiveArgs say what of an archive is left out, and how large it may be after that.
type archiveArgs struct {
	maskArgs
	Most int64
}

// Masked is what was left out of an archive. Hidden has the first of Count paths.
type Masked struct {
	Hidden []string
	Count  int
}

func runArchive(_ context.Context, c *worker.Call) (any, error) {
	var args archiveArgs
	if err := c.Args(&args); err != nil {
		return nil, err
	}
	files, err := c.Files(1)
	if err != nil {
		return nil, err
	}
	mask, err := NewMask(args.Hide, args.Show)
	if err != nil {
		return nil, err
	}
	list := mask.Lister()
	if err := archive.CopyShown(&capped{w: files[0], left: args.Most}, c.Input(), list.Hides); err != nil {
		return nil, err
	}
	return Masked{Hidden: list.Hidden, Count: list.Count}, nil
}

// capped fails with Exhausted once more than left bytes were written.
type capped struct {
	w    io.Writer
	left int64
}

func (c *capped) Write(p []byte) (int, error) {
	if c.left -= int64(len(p)); c.left < 0 {
		return 0, caisson.Errorf(caisson.Exhausted, "the archive is larger than it may be")
	}
	return c.w.Write(p)
}

// MaskArchive copies a tar archive that a client has made from in to out, at most most bytes of it, without what is hidden. It reads
// in to its end, or until the copy fails; errors of in come back as they are. Invalid if it is no such archive.
func (t *Tool) MaskArchive(ctx context.Context, hide, show []string, in io.Reader, out *os.File, most int64) (Masked, error) {
	source := &noted{r: in}
	var result Masked
	err := t.run.Run(ctx, worker.Request{
		Job: jobArchive, Args: archiveArgs{maskArgs: maskArgs{Hide: hide, Show: show}, Most: most}, Files: []*os.File{out}, Input: source,
		Limits: worker.Limits{Time: archiveTime},
	}, &result)
	if source.err != nil { // the job has seen a short archive
		err = source.err
	}
	return result, err
}

// noted remembers why a reader failed. Run returns when nothing reads from it any more.
type noted struct {
	r   io.Reader
	err error
}

func (n *noted) Read(p []byte) (int, error) {
	k, err := n.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		n.err = err
	}
	return k, err
}
