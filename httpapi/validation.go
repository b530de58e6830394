package httpapi

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// humaContext is an alias that gives the embedded interface a field name other than Context, which is one of its methods.
type humaContext = huma.Context

// statusContext allows translateErrors to change the status of a response.
type statusContext struct {
	humaContext
	status int // replaces the status that the handler sets, unless 0
}

// SetStatus sets the status of the response to c.status or, if that is 0, to status.
func (c *statusContext) SetStatus(status int) {
	if c.status != 0 {
		status = c.status
	}
	c.humaContext.SetStatus(status)
}

// Unwrap allows Huma's adapters to find their own context.
func (c *statusContext) Unwrap() huma.Context { return c.humaContext }

// translateErrors converts Huma's own errors, all of which are about malformed requests, to problems. The function with which
// Huma creates errors could be replaced instead, but it is a global variable, so that its replacement would affect the whole
// process.
func translateErrors(ctx huma.Context, _ string, v any) (any, error) {
	model, ok := v.(*huma.ErrorModel)
	if !ok {
		return v, nil
	}
	p := protocol.ProblemOf(invalidError(model))
	if c, ok := ctx.(*statusContext); ok {
		c.status = p.Status
	}
	return p, nil
}

// fieldSeparator separates the field from the message in an error of unmarshal, because Huma keeps only the text of such errors.
const fieldSeparator = "\x00"

// unmarshal is like [json.Unmarshal], but its errors contain the name of the field.
func unmarshal(data []byte, v any) error {
	err := json.Unmarshal(data, v)
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return errors.New(jsonPath(e.Field) + fieldSeparator + "cannot hold " + e.Value)
	}
	return err
}

// jsonPath removes the names of embedded Go types, which encoding/json puts into paths, from path.
func jsonPath(path string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(path, "."), func(name string) bool {
		return name != "" && name[0] >= 'A' && name[0] <= 'Z'
	}), ".")
}

// invalidError returns an Invalid error for the first error in m, in the order of locations.
func invalidError(m *huma.ErrorModel) error {
	if len(m.Errors) == 0 {
		return caisson.Errorf(caisson.Invalid, "%s", m.Detail)
	}
	first := slices.MinFunc(m.Errors, func(a, b *huma.ErrorDetail) int { return strings.Compare(a.Location, b.Location) })
	loc, field, _ := strings.Cut(first.Location, ".")
	msg := first.Message
	required := strings.Split(validation.MsgExpectedRequiredProperty, "%s")
	switch {
	case strings.Contains(msg, fieldSeparator):
		field, msg, _ = strings.Cut(msg, fieldSeparator)
	case msg == validation.MsgUnexpectedProperty:
		msg = "there is no such field"
	case msg == validation.MsgExpectedMatchAtLeastOneSchema: // schemas of which at least one must match occur only for sizes
		msg = "is not a size; write a number of bytes, or for example 512M or 2GiB"
	case msg == validation.MsgExpectedMatchExactlyOneSchema: // schemas of which exactly one must match occur only for ports
		msg = "is not a port or a range of ports; write for example 443 or 8000-8010"
	case strings.HasSuffix(msg, `, "`): // the last value that msg lists is "", the default; it is removed from msg
		msg = strings.TrimSuffix(msg, `, "`) + `"`
	case strings.HasPrefix(msg, required[0]) && strings.HasSuffix(msg, required[1]):
		name := strings.TrimSuffix(strings.TrimPrefix(msg, required[0]), required[1])
		field, msg = strings.TrimPrefix(field+"."+name, "."), "is required"
	case strings.HasPrefix(msg, "required ") && strings.HasSuffix(msg, "parameter is missing"):
		msg = "is required"
	case field == "":
		field, msg = loc, "cannot be read: "+msg
	}
	return &caisson.Error{Kind: caisson.Invalid, Field: field, Msg: msg}
}

// decode decodes a T from JSON that is not the body of a request but a part of it, with the same validation as a body.
func decode[T any](rt *router, data []byte) (v T, err error) {
	var loose any
	if err := json.Unmarshal(data, &loose); err != nil {
		return v, caisson.Errorf(caisson.Invalid, "the request cannot be read: %s", err)
	}
	registry := rt.api.OpenAPI().Components.Schemas
	at := huma.NewPathBuffer(nil, 0)
	at.Push("body")
	var found huma.ValidateResult
	huma.Validate(registry, registry.Schema(reflect.TypeFor[T](), true, ""), at, huma.ModeWriteToServer, loose, &found)
	if len(found.Errors) > 0 {
		m := &huma.ErrorModel{}
		for _, e := range found.Errors {
			m.Add(e)
		}
		return v, invalidError(m)
	}
	if err := unmarshal(data, &v); err != nil {
		field, msg, ok := strings.Cut(err.Error(), fieldSeparator)
		if !ok {
			return v, caisson.Errorf(caisson.Invalid, "the request cannot be read: %s", err)
		}
		return v, caisson.Invalidf(field, "%s", msg)
	}
	return v, nil
}
