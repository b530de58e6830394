package caisson

import (
	"context"
	"io"
	"time"
)

// FileInfo describes a file in a sandbox. All values come from the sandbox and are untrusted.
type FileInfo struct {
	Name    string    `json:"name"`
	Path    string    `json:"path" doc:"Absolute path inside the sandbox"`
	Type    string    `json:"type" enum:"file,directory,symlink,fifo,socket,device,other"`
	Size    int64     `json:"size"` // in bytes
	Mode    string    `json:"mode" doc:"Permission bits in octal, setuid, setgid and sticky included"`
	UID     int       `json:"uid"` // inside the sandbox
	GID     int       `json:"gid"` // inside the sandbox
	ModTime time.Time `json:"modTime"`
	Target  string    `json:"target,omitempty" doc:"Of a symlink"`
}

// A FileEvent is one change of a file that [Files.WatchFiles] reports.
type FileEvent struct {
	Op   string `json:"op" enum:"create,write,remove,rename,chmod,overflow" doc:"overflow: events were lost, list again"`
	Path string `json:"path"` // absolute path inside the sandbox
}

// Files is the service for the files in sandboxes. Paths are absolute inside the sandbox and are resolved there, by a process
// inside it: no path, symlink or special file leads to a file outside the sandbox. ref is the id or name of
// a sandbox. NotFound, Conflict (wrong state; exists, not a directory, not empty) and Denied refer to the sandbox or the file.
//
// The files of paused and stopped sandboxes can be read but not written.
type Files interface {
	// ReadFile streams a regular file from offset, at most limit bytes (0: no limit).
	ReadFile(ctx context.Context, ref, path string, offset, limit int64) (io.ReadCloser, error)
	// WriteFile atomically replaces a file with the content of r: a reader gets either the old or the new content.
	// Missing parent directories are created. mode 0 keeps the old file's mode, or means 0644.
	WriteFile(ctx context.Context, ref, path string, mode uint32, r io.Reader) (*FileInfo, error)
	ListFiles(ctx context.Context, ref, path string) ([]FileInfo, error)    // returns the entries of the directory at path
	StatFile(ctx context.Context, ref, path string) (*FileInfo, error)      // does not follow symlinks
	MakeDir(ctx context.Context, ref, path string, parents bool) error      // parents: creates missing ones, and path may exist
	MoveFile(ctx context.Context, ref, from, to string) error               // renames a file or directory; Conflict if to exists
	RemoveFile(ctx context.Context, ref, path string, recursive bool) error // recursive: removes a directory with its contents
	// WatchFiles reports changes of path and of its entries, and with recursive of everything below it, until ctx ends, path is
	// removed or renamed, or the sandbox stops; the channel is then closed.
	WatchFiles(ctx context.Context, ref, path string, recursive bool) (<-chan FileEvent, error)
	// ReadTree streams the file or tree at path as a tar of regular files, directories and symlinks, named from path's parent on.
	ReadTree(ctx context.Context, ref, path string) (io.ReadCloser, error)
	// WriteTree unpacks r, a tar archive of files, directories and symlinks, in the directory path. It replaces existing files.
	WriteTree(ctx context.Context, ref, path string, r io.Reader) error
}
