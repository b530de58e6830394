package runs

import (
	"context"
	"io"
	"os"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/namemask"
)

// Workspaces contains the methods of [caisson.Workspaces] that this package requires.
type Workspaces interface {
	GetWorkspace(ctx context.Context, ref string) (*caisson.Workspace, error)
	Diff(ctx context.Context, ref string, req caisson.DiffRequest) (*caisson.Diff, error)
}

// Masker hides files whose names indicate credentials from agents that work on copies of directories.
type Masker interface {
	// Mask returns a mask that hides files whose names indicate credentials, except those that match a pattern in show. Returns
	// Invalid if a pattern is malformed.
	Mask(show []string) (*namemask.Mask, error)
	// MaskArchive copies a client's archive from in to out, without the files that [Masker.Mask] hides. It returns the first
	// hidden paths and the number of all. It writes at most most bytes. Returns Invalid if in is not an archive of files,
	// directories and symlinks; errors of in are returned unchanged.
	MaskArchive(ctx context.Context, show []string, in io.Reader, out *os.File, most int64) (hidden []string, count int, err error)
}

// directoryFile is the name of the file that records which directory a run works on, if the directory is not copied. The file
// is needed because attempts may begin after the request has ended.
const directoryFile = "directory.json"
