package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// maxStepTime is the maximum timeout of a set-up step in templates that are stored over TCP; over the unix socket there is none.
// Cores limit the number of steps.
const maxStepTime = 30 * time.Minute

// templateRoutes serves templates.
type templateRoutes struct{ core caisson.Templates }

// NameParam is the name of a template in a path.
type NameParam struct {
	Name string `path:"name" maxLength:"128" doc:"Name of the template"`
}

// templateBody is a response with a template.
type templateBody = body[*caisson.Template]

func (h templateRoutes) register(rt *router) {
	const tag = "templates"
	registerRoute(rt, newOperation(http.MethodGet, "/templates", "list-templates", tag, "List templates, by name"), h.list)
	registerRoute(rt, newOperation(http.MethodGet, "/templates/{name}", "get-template", tag, "Get a template"), h.get)
	registerRoute(rt, newOperation(http.MethodPut, "/templates/{name}", "put-template", tag, "Create or replace a template"), h.put)
	registerRoute(rt, newOperation(http.MethodDelete, "/templates/{name}", "remove-template", tag, "Delete a template"), h.remove)
	registerStreamRoute(rt, withEventStream(newOperation(http.MethodPost, "/templates/{name}/build", "build-template", tag, "Pull the image and run the set-up steps"),
		"Events named progress (Progress), then one named result (Template) or error (Problem)"), h.build(rt))
}

func (h templateRoutes) list(ctx context.Context, _ *struct{}) (*body[protocol.Page[*caisson.Template]], error) {
	list, err := h.core.ListTemplates(ctx)
	if err != nil {
		return nil, err
	}
	return wholeList(mapAnswers(list, templateAnswer)), nil
}

func (h templateRoutes) get(ctx context.Context, in *NameParam) (*templateBody, error) {
	t, err := h.core.GetTemplate(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	return &templateBody{templateAnswer(t)}, nil
}

func (h templateRoutes) put(ctx context.Context, in *struct {
	NameParam
	Body caisson.Template
},
) (*templateBody, error) {
	t := in.Body
	if t.Name != in.Name {
		return nil, caisson.Invalidf("name", "must be %q, the name in the path", in.Name)
	}
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkLabels(t.Labels); err != nil {
		return nil, err
	}
	if !caller.Local && len(t.Mounts) > 0 {
		return nil, errHostPath()
	}
	for i, s := range t.Setup {
		if !caller.Local && time.Duration(s.Timeout) > maxStepTime {
			return nil, &caisson.Error{
				Kind: caisson.Denied, Field: fmt.Sprintf("setup[%d].timeout", i),
				Msg: fmt.Sprintf("is more than %s, the most that can be asked for over a token", caisson.Duration(maxStepTime)),
			}
		}
	}
	// A client can send back a template that it has read: fields that only Caisson sets are ignored.
	t.Account, t.Built, t.CreatedAt = "", nil, time.Time{}
	stored, err := h.core.PutTemplate(ctx, t)
	if err != nil {
		return nil, err
	}
	return &templateBody{templateAnswer(stored)}, nil
}

func (h templateRoutes) remove(ctx context.Context, in *NameParam) (*noContent, error) {
	return nil, h.core.RemoveTemplate(ctx, in.Name)
}

// buildInput is a request to build a template.
type buildInput struct {
	NameParam
	Body *caisson.RegistryAuth
}

// build returns the handler that builds a template. The response is that of [serveProgress].
func (h templateRoutes) build(rt *router) func(http.ResponseWriter, *http.Request, *buildInput) error {
	return func(w http.ResponseWriter, r *http.Request, in *buildInput) error {
		var auth caisson.RegistryAuth
		if in.Body != nil {
			auth = *in.Body
		}
		return serveProgress(rt, w, r, func(ctx context.Context, progress func(caisson.Progress)) (*caisson.Template, error) {
			t, err := h.core.BuildTemplate(ctx, in.Name, auth, progress)
			if err != nil {
				return nil, err
			}
			return templateAnswer(t), nil
		})
	}
}
