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

// archiveArgs are the arguments of jobArchive, which copies an archive without hidden files: the mask, and a limit of the copy.
type archiveArgs struct {
	maskArgs
	Most int64 // maximum size in bytes of the archive that the job writes
}

// MaskResult reports the hidden paths that were left out of an archive. Hidden contains the first of Count paths.
type MaskResult struct {
	Hidden []string // the first hidden paths
	Count  int      // number of all hidden paths
}

// jobArchive copies the archive in its input to its first file descriptor, without the files that its arguments hide.
var jobArchive = worker.Job[archiveArgs, MaskResult]{
	// The time limit is long because the input may be an upload over a slow network.
	Name: "gate.archive", Files: 1, Limits: worker.Limits{Time: 12 * time.Hour},
	Do: func(_ context.Context, c *worker.Call, args archiveArgs) (MaskResult, error) {
		mask, err := NewMask(args.Hide, args.Show)
		if err != nil {
			return MaskResult{}, err
		}
		list := mask.Lister()
		if err := archive.CopyVisible(&limitedWriter{w: c.Files[0], left: args.Most}, c.Input(), list.Hides); err != nil {
			return MaskResult{}, err
		}
		return MaskResult{Hidden: list.Hidden, Count: list.Count}, nil
	},
}

// limitedWriter is a writer that returns Exhausted when more than left bytes are written to it.
type limitedWriter struct {
	w    io.Writer // the underlying writer
	left int64     // number of bytes that may still be written
}

func (c *limitedWriter) Write(p []byte) (int, error) {
	if c.left -= int64(len(p)); c.left < 0 {
		return 0, caisson.Errorf(caisson.Exhausted, "the archive is larger than it may be")
	}
	return c.w.Write(p)
}

// MaskArchive copies an untrusted tar archive from in to out as a worker job, without the files that NewMask(hide, show) hides.
// It reads in to its end, or until the copy fails, and returns errors of in unchanged. Returns Invalid if the input is not a
// valid archive, and Exhausted if more than most bytes would be written.
func MaskArchive(
	ctx context.Context, run worker.Starter, hide, show []string, in io.Reader, out *os.File, most int64,
) (MaskResult, error) {
	source := &errorRecorder{r: in}
	args := archiveArgs{maskArgs: maskArgs{Hide: hide, Show: show}, Most: most}
	result, err := jobArchive.Run(ctx, run, args, worker.RunInput{Files: []*os.File{out}, Input: source})
	if source.err != nil { // the job has received a truncated archive, so its own error is not the cause
		err = source.err
	}
	return result, err
}

// errorRecorder is a reader that records the error of the underlying reader r, except io.EOF, in err. err may be read after the
// job that reads from the errorRecorder has ended.
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
