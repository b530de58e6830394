package llm

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"

	"github.com/caisson-dev/caisson"
	"github.com/go-json-experiment/json/jsontext"
)

// endUser returns the id of the end user for the provider: the account for LiteLLM; for other providers a hash of the account and
// the user, which is stable and reveals neither.
func (c *call) endUser() string {
	if c.model.provider.Kind == caisson.ProviderLiteLLM {
		return c.guest.Account
	}
	sum := sha256.Sum256([]byte("caisson user\x00" + c.guest.Account + "\x00" + c.guest.User))
	return "caisson-" + hex.EncodeToString(sum[:16])
}

// setLiteLLMHeaders sets the headers that LiteLLM copies into its spend logs.
func (c *call) setLiteLLMHeaders(h http.Header) {
	g := c.guest
	b := appendQuoted(nil, `{"run_id":`, g.Run)
	b = strconv.AppendInt(append(b, `,"attempt":`...), int64(g.Attempt), 10)
	b = appendQuoted(b, `,"user_id":`, g.User)
	b = appendQuoted(b, `,"graph_id":`, g.Agent)
	b = appendQuoted(b, `,"session_id":`, g.Session)
	b = appendQuoted(b, `,"caisson_call_id":`, string(c.row.ID))
	h["X-Litellm-End-User-Id"] = []string{escapeHeader([]byte(g.Account))}
	h["X-Litellm-Spend-Logs-Metadata"] = []string{escapeHeader(append(b, '}'))}
}

// appendQuoted appends before and then s, as a JSON string, to b.
func appendQuoted(b []byte, before, s string) []byte {
	b, _ = jsontext.AppendQuote(append(b, before...), s) // the error only means that invalid UTF-8 was replaced
	return b
}

// escapeHeader returns the JSON text b as a valid header: characters other than printable ASCII are replaced by JSON escapes.
func escapeHeader(b []byte) string {
	plain := true
	for _, c := range b {
		plain = plain && c >= ' ' && c < 0x7f
	}
	if plain {
		return string(b)
	}
	var out []byte
	for _, r := range string(b) {
		switch {
		case r >= ' ' && r < 0x7f:
			out = append(out, byte(r))
		case r > 0xffff:
			r -= 0x10000
			out = appendEscape(appendEscape(out, 0xd800+r>>10), 0xdc00+r&0x3ff)
		default:
			out = appendEscape(out, r)
		}
	}
	return string(out)
}

// appendEscape appends \uXXXX for r, which must be below 0x10000.
func appendEscape(b []byte, r rune) []byte {
	const digits = "0123456789abcdef"
	return append(b, '\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15])
}
