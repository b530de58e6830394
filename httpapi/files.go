package httpapi

import (
	"context"
	"io"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// uploadLimit is the maximum size of an upload in bytes; the sandbox's disk limit is usually far below.
const uploadLimit = 64 << 30

// fileRoutes serves operations on single files and directories of sandboxes; treeRoutes serves those on whole trees.
type fileRoutes struct{ core caisson.Files }

func (h fileRoutes) register(rt *router) {
	const tag = "files"
	registerDownloadRoute(rt, getOp("/sandboxes/{ref}/files", "read-file", tag, "Read a regular file"),
		protocol.BinaryType, "The file's bytes", h.read)
	registerStreamRoute(rt, withJSONResponse[caisson.FileInfo](rt, withUpload(putOp("/sandboxes/{ref}/files", "write-file", tag,
		"Replace a file atomically"), protocol.BinaryType)), h.write)
	registerActionRoute(rt, deleteOp("/sandboxes/{ref}/files", "remove-file", tag, "Delete a file or directory"), h.remove)
	registerListRoute(rt, getOp("/sandboxes/{ref}/files/list", "list-files", tag, "List a directory"), h.list)
	registerRoute(rt, getOp("/sandboxes/{ref}/files/stat", "stat-file", tag, "Describe a file"), h.stat)
	registerActionRoute(rt, postOp("/sandboxes/{ref}/files/mkdir", "make-directory", tag, "Make a directory"), h.mkdir)
	registerActionRoute(rt, postOp("/sandboxes/{ref}/files/move", "move-file", tag, "Move a file or directory"), h.move)
}

// PathParam is the reference of a sandbox and a path in it.
type PathParam struct {
	RefParam
	Path string `query:"path" required:"true" doc:"Absolute path inside the sandbox"`
}

func (h fileRoutes) read(ctx context.Context, in *struct {
	PathParam
	Offset int64 `query:"offset" minimum:"0" doc:"First byte to read"`
	Limit  int64 `query:"limit" minimum:"0" doc:"Bytes to read; 0 means all"`
},
) (io.ReadCloser, error) {
	if err := checkPath("path", in.Path); err != nil {
		return nil, err
	}
	return h.core.ReadFile(ctx, in.Ref, in.Path, in.Offset, in.Limit)
}

// write replaces a file by the body of the request.
func (h fileRoutes) write(w http.ResponseWriter, r *http.Request, in *struct {
	PathParam
	Mode string `query:"mode" doc:"Permission bits in octal; the default is those of the replaced file, or 0644"`
},
) error {
	mode, err := parseMode(in.Mode)
	if err != nil {
		return err
	}
	if err := checkPath("path", in.Path); err != nil {
		return err
	}
	info, err := h.core.WriteFile(r.Context(), in.Ref, in.Path, mode, upload(w, r, uploadLimit))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, info)
}

func (h fileRoutes) remove(ctx context.Context, in *struct {
	PathParam
	Recursive bool `query:"recursive" doc:"Also delete the contents of a directory"`
},
) error {
	if err := checkPath("path", in.Path); err != nil {
		return err
	}
	return h.core.RemoveFile(ctx, in.Ref, in.Path, in.Recursive)
}

func (h fileRoutes) list(ctx context.Context, in *PathParam) ([]caisson.FileInfo, error) {
	if err := checkPath("path", in.Path); err != nil {
		return nil, err
	}
	return h.core.ListFiles(ctx, in.Ref, in.Path)
}

func (h fileRoutes) stat(ctx context.Context, in *PathParam) (*caisson.FileInfo, error) {
	if err := checkPath("path", in.Path); err != nil {
		return nil, err
	}
	return h.core.StatFile(ctx, in.Ref, in.Path)
}

func (h fileRoutes) mkdir(ctx context.Context, in *struct {
	RefParam
	Body protocol.MakeDirRequest
},
) error {
	if err := checkPath("path", in.Body.Path); err != nil {
		return err
	}
	return h.core.MakeDir(ctx, in.Ref, in.Body.Path, in.Body.Parents)
}

func (h fileRoutes) move(ctx context.Context, in *struct {
	RefParam
	Body protocol.MoveRequest
},
) error {
	if err := checkPath("from", in.Body.From); err != nil {
		return err
	}
	if err := checkPath("to", in.Body.To); err != nil {
		return err
	}
	return h.core.MoveFile(ctx, in.Ref, in.Body.From, in.Body.To)
}
