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
	"github.com/caisson-dev/caisson/wire/llm/dialect"
)

// Limits of the text that a row of the ledger has about a failure of the provider, in bytes: maxDetail for the whole text,
// maxProviderMessage for the provider's message in it.
const (
	maxDetail          = 480
	maxProviderMessage = 240
)

// A failure records what went wrong with one call at its provider. It is stored in the call's row, for the account that is
// charged, and is not shown to the guest.
type failure struct {
	row     *caisson.Call
	model   *model
	secrets *secrets // finds the keys to redact
}

// newFailure returns the failure of a call, whose description is recorded in the call's row.
func newFailure(c *call) failure { return failure{&c.row, c.model, c.setup.secrets} }

// record stores the failure in the row: one line of plain text without keys.
func (f failure) record(format string, args ...any) {
	text := f.secrets.redactAll(fmt.Appendf(nil, format, args...))
	f.row.Detail = safetext.Short(safetext.Line(string(text)), maxDetail)
}

// providerMessage returns the message in the body of a provider's error, prefixed with ": ", or "" if there is none.
func (f failure) providerMessage(body []byte) string {
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
			json.Unmarshal(outer.Error, &inner.Message) // leaves the message empty on an error
		}
		text = cmp.Or(inner.Message, inner.Type, outer.Message, strings.Trim(string(outer.Detail), `"`))
	}
	// Keys are removed before the text is truncated, because a truncated key might not be recognised.
	text = safetext.Short(safetext.Line(string(f.secrets.redactAll([]byte(text)))), maxProviderMessage)
	if text == "" {
		return ""
	}
	return ": " + text
}

// rejectsKey reports whether an error of the provider means that it rejects the credential.
func (f failure) rejectsKey(status int, body []byte) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return true
	}
	return f.model.provider.Kind == caisson.ProviderGemini && status == http.StatusBadRequest && bytes.Contains(body, []byte("API_KEY_INVALID"))
}

// recordRejectedKey records which credential the provider rejects.
func (f failure) recordRejectedKey(status int, body []byte) {
	from := f.model.provider
	if from.Credential == "" {
		f.record(`provider %q requires a credential for model %q (%d), and none is configured for it: add "credential" to the provider%s`, from.Name, f.model.Alias, status, f.providerMessage(body))
		return
	}
	f.record(`the provider refused the credential %s of model %q (%d): run "caisson credential rotate %s"%s`,
		from.Credential, f.model.Alias, status, from.Credential, f.providerMessage(body))
}

// recordUnreachable records why the provider could not be reached.
func (f failure) recordUnreachable(err error) {
	f.record("provider %q of model %q cannot be reached at %s: %s; is it running, and its baseURL right?", f.model.provider.Name, f.model.Alias, f.model.provider.base.Host, connectionFailure(err))
}

// refuseKeyless refuses a call of a model whose credential is missing. The call is in the ledger, so that the run can report why
// its agent failed.
func refuseKeyless(c *call) error {
	c.fillRow()
	var err error
	if c.reserved, err = c.g.config.Meter.Reserve(c.r.Context(), c.row, caisson.Demand{Fixed: caisson.Amount{Calls: 1}}); err != nil {
		return c.g.refuseBudget(c.r.Context(), err)
	}
	defer c.settleDeferred()
	newFailure(c).record(`model %q has no credential: run "caisson credential set %s"`, c.model.Alias, c.model.provider.Credential)
	why := finalRefusal(c.api.Dialect, `model %.80q has no credential; see "caisson runs show" and use "caisson credential set" on the host`, c.model.Alias)
	return c.fail(outcome{errorCode: "upstream", status: why.Status}, why)
}

// finalRefusal returns a refusal that clients of the API do not retry.
func finalRefusal(d dialect.Dialect, format string, args ...any) *dialect.Refusal {
	return &dialect.Refusal{Status: d.FinalStatus(), Code: "credential", Final: true, Message: fmt.Sprintf(format, args...)}
}

// connectionFailure describes briefly why a connection failed.
func connectionFailure(err error) string {
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
