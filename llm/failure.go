package llm

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/llm/dialect"
)

// What a row keeps of a provider's failure, in bytes: maxDetail of all of it, maxSays of the provider's own words.
const (
	maxDetail = 480
	maxSays   = 240
)

// A fault is what went wrong with one call at its provider. It is kept in the call's row, for whoever pays for it; the guest is never told.
type fault struct {
	row     *caisson.Call
	model   *model
	secrets *secrets
}

func faultOf(c *call) fault { return fault{&c.row, c.model, c.setup.secrets} }

// note writes into the row what the provider did, or why it could not be reached: one line of plain text without keys.
func (f fault) note(format string, args ...any) {
	text := f.secrets.clean(fmt.Appendf(nil, format, args...))
	f.row.Detail = safetext.Short(safetext.Line(string(text)), maxDetail)
}

// says returns what the body of a provider's error says, with ": " before it; "" if it says nothing.
func (f fault) says(body []byte) string {
	var outer struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	var inner struct {
		Message string `json:"message"`
		Type    string `json:"type"`
	}
	text := string(body)
	if json.Unmarshal(body, &outer) == nil {
		if json.Unmarshal(outer.Error, &inner) != nil {
			json.Unmarshal(outer.Error, &inner.Message) // or else there is none
		}
		text = cmp.Or(inner.Message, inner.Type, outer.Message, strings.Trim(string(outer.Detail), `"`))
	}
	// What is cut off must not be what a key is recognised by.
	text = safetext.Short(safetext.Line(string(f.secrets.clean([]byte(text)))), maxSays)
	if text == "" {
		return ""
	}
	return ": " + text
}

// refusesKey reports whether an error of the provider says that the credential is not accepted.
func (f fault) refusesKey(status int, body []byte) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return true
	}
	return f.model.from.Kind == caisson.ProviderGemini && status == http.StatusBadRequest && bytes.Contains(body, []byte("API_KEY_INVALID"))
}

// keyRefused notes which credential it was that the provider does not accept.
func (f fault) keyRefused(status int, body []byte) {
	from := f.model.from
	if from.Credential == "" {
		f.note(`provider %q wants a credential for model %q (%d), and none is configured for it: add "credential" to the provider%s`, from.Name, f.model.Alias, status, f.says(body))
		return
	}
	f.note(`the provider refused the credential %s of model %q (%d): run "caisson credential rotate %s"%s`,
		from.Credential, f.model.Alias, status, from.Credential, f.says(body))
}

// unreachable notes why nothing could be sent.
func (f fault) unreachable(err error) {
	f.note("provider %q of model %q cannot be reached at %s: %s", f.model.from.Name, f.model.Alias, f.model.from.base.Host, cause(err))
}

// refuseKeyless refuses a call of a model whose credential is not there. It is in the ledger, so that the run can tell why its agent failed.
func refuseKeyless(c *call) error {
	c.describe()
	var err error
	if c.reserved, err = c.g.config.Meter.Reserve(c.r.Context(), c.row, caisson.Demand{Fixed: caisson.Amount{Calls: 1}}); err != nil {
		return c.g.refuseBudget(c.r.Context(), err)
	}
	defer c.settleAnyway()
	faultOf(c).note(`model %q has no credential: run "caisson credential set %s"`, c.model.Alias, c.model.from.Credential)
	why := final(c.api.Dialect, `model %.80q has no credential; "caisson runs show" and "caisson credential set" on the host help`, c.model.Alias)
	return c.fail(outcome{word: "upstream", status: why.Status}, why)
}

// final is a refusal that no client of the API tries again.
func final(d dialect.Dialect, format string, args ...any) *dialect.Refusal {
	return &dialect.Refusal{Status: d.Final(), Code: "credential", Final: true, Message: fmt.Sprintf(format, args...)}
}

// cause says in a few words why a connection could not be made or broke.
func cause(err error) string {
	var unresolved *net.DNSError
	var ours *caisson.Error
	var verify *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	var late net.Error
	switch {
	case errors.As(err, &unresolved):
		return "its name cannot be resolved"
	case errors.As(err, &ours):
		return "its name cannot be resolved: " + ours.Msg
	case errors.As(err, &verify), errors.As(err, &unknown):
		return "its TLS certificate is not valid: " + err.Error()
	case errors.As(err, &record), errors.As(err, &alert):
		return "TLS failed: " + err.Error()
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errIdle), errors.As(err, &late) && late.Timeout():
		return "timed out"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "the connection was closed"
	}
	return err.Error()
}
