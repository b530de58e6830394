package httpapi

import (
	"context"
	"io"
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// treeRoutes serves directories of sandboxes with all that is in them, and events about changes of files.
type treeRoutes struct{ core caisson.Files }

func (h treeRoutes) register(rt *router) {
	const tag = "files"
	registerDownloadRoute(rt, getOp("/sandboxes/{ref}/files/tree", "read-tree", tag, "Read a file or tree as a tar archive"),
		protocol.TarType, "An archive with names relative to the parent of path", h.read)
	registerStreamRoute(rt, withResponse(withUpload(putOp("/sandboxes/{ref}/files/tree", "write-tree", tag, "Unpack a tar archive below a directory"),
		protocol.TarType), http.StatusNoContent, "", "Unpacked"), h.write)
	registerStreamRoute(rt, withEventStream(getOp("/sandboxes/{ref}/files/watch", "watch-files", tag, "Stream changes below a path"),
		"Events named file, with a FileEvent each"), h.watch)
}

func (h treeRoutes) read(ctx context.Context, in *PathParam) (io.ReadCloser, error) {
	if err := checkPath("path", in.Path); err != nil {
		return nil, err
	}
	return h.core.ReadTree(ctx, in.Ref, in.Path)
}

func (h treeRoutes) write(w http.ResponseWriter, r *http.Request, in *PathParam) error {
	if err := checkPath("path", in.Path); err != nil {
		return err
	}
	if err := h.core.WriteTree(r.Context(), in.Ref, in.Path, upload(w, r, uploadLimit)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// watch streams the changes of files at and below a path in a sandbox.
func (h treeRoutes) watch(w http.ResponseWriter, r *http.Request, in *struct {
	PathParam
	Recursive bool `query:"recursive" doc:"Also watch directories below path"`
},
) error {
	if err := checkPath("path", in.Path); err != nil {
		return err
	}
	changes, err := h.core.WatchFiles(r.Context(), in.Ref, in.Path, in.Recursive)
	if err != nil {
		return err
	}
	return streamEvents(w, r, changes, protocol.EventFile, func(caisson.FileEvent) int64 { return 0 })
}

// streamEvents sends events until the channel is closed or the client has disconnected.
func streamEvents[T any](w http.ResponseWriter, r *http.Request, events <-chan T, name string, id func(T) int64) error {
	s := newSSEWriter(w)
	if err := s.start(); err != nil {
		return err
	}
	defer s.keepAlive()()
	for e := range events {
		if s.send(id(e), name, e) != nil {
			break
		}
	}
	// The remaining events need not be read: the request's context ends when the handler returns, and then the sender stops.
	return nil
}
