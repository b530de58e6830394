package httpapi

import (
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// formType is the media type of a form with files.
const formType = "multipart/form-data"

// registerUpload registers the route that starts a run with an uploaded workspace.
func (h runRoutes) registerUpload(rt *router) {
	o := postOp("/runs/upload", "upload-run", "runs", "Start a run of an agent, with the archive of a workspace")
	o.Description = "The form's first part, request, is a RunRequest as JSON; its second, workspace, a tar archive of regular files, directories and " +
		"symlinks with names relative to the workspace, as tar -C DIR -c . makes it. The answer comes when the archive has arrived. A request " +
		"that is repeated with the same Idempotency-Key is compared without its archive."
	o = withUpload(withJSONResponse[caisson.Run](rt, o), formType)
	o.Responses = map[string]*huma.Response{"201": o.Responses["200"]}
	o.DefaultStatus = http.StatusCreated
	registerStreamRoute(rt, o, h.upload(rt))
	setBodySchema(o, &huma.Schema{
		Type: huma.TypeObject, Required: []string{protocol.PartRequest, protocol.PartWorkspace},
		Properties: map[string]*huma.Schema{
			protocol.PartRequest:   {Ref: "#/components/schemas/RunRequest"},
			protocol.PartWorkspace: {Type: huma.TypeString, Format: "binary"},
		},
	})
}

// upload returns the handler that starts a run with an uploaded workspace.
func (h runRoutes) upload(rt *router) func(http.ResponseWriter, *http.Request, *KeyParam) error {
	return func(w http.ResponseWriter, r *http.Request, in *KeyParam) error {
		kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if err != nil || kind != formType || params["boundary"] == "" {
			return caisson.Invalidf("Content-Type", "must be %s with a boundary", formType)
		}
		form := multipart.NewReader(upload(w, r, uploadLimit), params["boundary"])
		part, err := nextPart(form, protocol.PartRequest)
		if err != nil {
			return err
		}
		data, err := io.ReadAll(io.LimitReader(part, protocol.MaxRunRequest+1))
		switch {
		case err != nil:
			return brokenUpload(err)
		case len(data) > protocol.MaxRunRequest:
			return caisson.Invalidf(protocol.PartRequest, "has more than %s", caisson.Size(protocol.MaxRunRequest))
		}
		req, err := decode[caisson.RunRequest](rt, data)
		if err != nil {
			return err
		}
		if err := checkLabels(req.Labels); err != nil {
			return err
		}
		if req.Kind == caisson.WorkspaceVolume {
			return caisson.Invalidf("kind", "a workspace is either uploaded or a volume")
		}
		if part, err = nextPart(form, protocol.PartWorkspace); err != nil {
			return err
		}
		ctx := r.Context()
		run, err := once(ctx, h.idempotency, in.Key, "upload-run", req, func() (*caisson.Run, error) {
			req.Workspace = formReader{part}
			return h.core.StartRun(ctx, req)
		})
		if err != nil {
			return err
		}
		return writeJSON(w, http.StatusCreated, run)
	}
}

// nextPart returns the next part of a form, which must have this name.
func nextPart(form *multipart.Reader, name string) (*multipart.Part, error) {
	part, err := form.NextRawPart()
	switch {
	case errors.Is(err, io.EOF):
		return nil, caisson.Invalidf(name, "is required")
	case err != nil:
		return nil, brokenUpload(err)
	case part.FormName() != name:
		return nil, caisson.Invalidf(name, "must come before the part %.40q", part.FormName())
	}
	return part, nil
}

// formReader reads a part of a form. It converts errors except io.EOF to a [caisson.Error], because the core that reads the
// workspace does not know the errors of package multipart.
type formReader struct{ part io.Reader }

func (f formReader) Read(p []byte) (int, error) {
	n, err := f.part.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = brokenUpload(err)
	}
	return n, err
}

// brokenUpload converts an error in reading a form to an Invalid [caisson.Error].
func brokenUpload(err error) error {
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return caisson.Errorf(caisson.Invalid, "an upload has at most %s", caisson.Size(uploadLimit))
	}
	return caisson.Wrap(err, caisson.Invalid, "the form is malformed or broke off")
}
