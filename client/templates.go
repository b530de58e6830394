package client

import (
	"context"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// templates implements [caisson.Templates] by requests to a daemon.
type templates struct{ c *requester }

// PutTemplate implements [caisson.Templates].
func (t templates) PutTemplate(ctx context.Context, tmpl caisson.Template) (*caisson.Template, error) {
	tmpl.Built = nil // not sent, because only the daemon sets the field
	return call[*caisson.Template](ctx, t.c, put(tmpl, "templates", tmpl.Name))
}

// GetTemplate implements [caisson.Templates].
func (t templates) GetTemplate(ctx context.Context, name string) (*caisson.Template, error) {
	return call[*caisson.Template](ctx, t.c, get("templates", name))
}

// ListTemplates implements [caisson.Templates].
func (t templates) ListTemplates(ctx context.Context) ([]*caisson.Template, error) {
	return callList[*caisson.Template](ctx, t.c, get("templates"))
}

// RemoveTemplate implements [caisson.Templates].
func (t templates) RemoveTemplate(ctx context.Context, name string) error {
	return t.c.do(ctx, remove("templates", name))
}

// BuildTemplate implements [caisson.Templates].
func (t templates) BuildTemplate(ctx context.Context, name string, auth caisson.RegistryAuth, progress func(caisson.Progress)) (*caisson.Template, error) {
	return callWithProgress[*caisson.Template](ctx, t.c, post(protocol.LoginOf(auth), "templates", name, "build"), progress)
}
