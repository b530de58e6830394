package httpapi

import (
	"context"
	"fmt"
	"time"

	"github.com/caisson-dev/caisson"
)

// maxStepTime is the maximum timeout of a set-up step in templates that are stored over TCP. Over the unix socket there is no
// maximum. Cores limit the number of steps.
const maxStepTime = 30 * time.Minute

// templateRoutes serves templates.
type templateRoutes struct{ core caisson.Templates }

// NameParam is the name of a template in a path.
type NameParam struct {
	Name string `path:"name" maxLength:"128" doc:"Name of the template"`
}

// ref returns the name in the path; see [refParam].
func (p NameParam) ref() string { return p.Name }

func (h templateRoutes) register(rt *router) {
	const tag = "templates"
	registerListRoute(rt, getOp("/templates", "list-templates", tag, "List templates, by name"), h.list)
	registerRoute(rt, getOp("/templates/{name}", "get-template", tag, "Get a template"),
		withAnswer(byRef[NameParam](h.core.GetTemplate), templateAnswer))
	registerRoute(rt, putOp("/templates/{name}", "put-template", tag, "Create or replace a template"), withAnswer(h.put, templateAnswer))
	registerActionRoute(rt, deleteOp("/templates/{name}", "remove-template", tag, "Delete a template"), removeByRef[NameParam](h.core.RemoveTemplate))
	registerProgressRoute(rt, postOp("/templates/{name}/build", "build-template", tag, "Pull the image and run the set-up steps"), "Template", h.build)
}

func (h templateRoutes) list(ctx context.Context, _ *struct{}) ([]*caisson.Template, error) {
	list, err := h.core.ListTemplates(ctx)
	return mapAnswers(list, templateAnswer), err
}

func (h templateRoutes) put(ctx context.Context, in *struct {
	NameParam
	Body caisson.Template
},
) (*caisson.Template, error) {
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
				Msg: fmt.Sprintf("is more than %s, the most that can be requested over a token", caisson.Duration(maxStepTime)),
			}
		}
	}
	// A client can send back a template that it has read: fields that only Caisson sets are ignored.
	t.Account, t.Built, t.CreatedAt = "", nil, time.Time{}
	return h.core.PutTemplate(ctx, t)
}

func (h templateRoutes) build(ctx context.Context, in *struct {
	NameParam
	Body *caisson.RegistryAuth
}, progress func(caisson.Progress),
) (*caisson.Template, error) {
	var auth caisson.RegistryAuth
	if in.Body != nil {
		auth = *in.Body
	}
	t, err := h.core.BuildTemplate(ctx, in.Name, auth, progress)
	if err != nil {
		return nil, err
	}
	return templateAnswer(t), nil
}
