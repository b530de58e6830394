package baseline

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/caisson-dev/caisson"
	archive "github.com/caisson-dev/caisson/internal/tree"
	"github.com/caisson-dev/caisson/job/worker"
)

// archiveArgs contains the mask of an archive job and the maximum size of the masked archive, in bytes.
type archiveArgs struct {
	maskArgs
	Most int64
}

// Masked reports the paths that were left out of an archive. Hidden contains the first of Count paths.
type Masked struct {
	Hidden []string
	Count  int
}

// jobArchive copies the archive in its input to its file descriptor, without the hidden files.
var jobArchive = worker.Job[archiveArgs, Masked]{
	Name: "gate.archive", Files: 1, Limits: worker.Limits{Time: 12 * time.Hour}, // an upload is as slow as the client's network
	Do: func(_ context.Context, c *worker.Call, args archiveArgs) (Masked, error) {
		mask, err := NewMask(args.Hide, args.Show)
		if err != nil {
			return Masked{}, err
		}
		list := mask.Lister()
		if err := archive.CopyVisible(&limitedWriter{w: c.Files[0], left: args.Most}, c.Input(), list.Hides); err != nil {
			return Masked{}, err
		}
		return Masked{Hidden: list.Hidden, Count: list.Count}, nil
	},
}

// limitedWriter is a writer that returns Exhausted once more than left bytes were written.
type limitedWriter struct {
	w    io.Writer
	left int64
}

func (c *limitedWriter) Write(p []byte) (int, error) {
	if c.left -= int64(len(p)); c.left < 0 {
		return 0, caisson.Errorf(caisson.Exhausted, "the archive is larger than it may be")
	}
	return c.w.Write(p)
}

// MaskArchive copies an untrusted tar archive from in to out, without the hidden files. It reads in to its end, or until the copy
// fails, and returns errors of in unchanged. Returns Invalid if the input is not a valid archive, and Exhausted if more than most
// bytes would be written.
func MaskArchive(
	ctx context.Context, run worker.Starter, hide, show []string, in io.Reader, out *os.File, most int64,
) (Masked, error) {
	source := &errorRecorder{r: in}
	args := archiveArgs{maskArgs: maskArgs{Hide: hide, Show: show}, Most: most}
	result, err := jobArchive.Run(ctx, run, args, worker.Given{Files: []*os.File{out}, Input: source})
	if source.err != nil { // the job has received a truncated archive
		err = source.err
	}
	return result, err
}

// errorRecorder is a reader that records the error of the underlying reader. err may be read once the job has ended.
type errorRecorder struct {
	r   io.Reader
	err error
}

func (n *errorRecorder) Read(p []byte) (int, error) {
	k, err := n.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		n.err = err
	}
	return k, err
}
