// Package scripted is a model that answers from a script, with the APIs of OpenAI (chat completions, responses, embeddings,
// models), Anthropic (messages, count_tokens, models) and Gemini (generateContent), streaming or not. The same request gets the
// same answer, byte by byte. It serves tests, benchmarks, warm-up and demonstrations, and is used only if configured.
//
// A script is YAML:
//
//	models: [demo]              # the models; if absent, any model is served
//	key: sk-real                # requests must send this key; if absent, no key is required
//	chunk: 24                   # bytes of text in a piece of a stream
//	delay: {first: 0s, chunk: 0s}
//	dimensions: 16              # of embeddings
//	turns:
//	- when:                     # all conditions that are set must hold
//	    api: chat               # chat, responses, messages or generate
//	    model: demo-*           # a name, or a prefix of it
//	    last: list the files    # text that the last message of the user contains
//	    pattern: "(?i)list"     # regular expression for that message
//	    tool: bash              # the request ends with a result of this tool
//	    result: README          # text that a tool's result at the end of the request contains
//	    resultPattern: "^exit 0" # regular expression for that result
//	  text: "You said {{last}}."  # also {{model}} and {{result}}
//	  calls:                    # of tools; a turn with tools that the request does not offer does not match
//	  - {name: bash, arguments: '{"command": "ls"}'}
//	  times: 3                  # maximum number of answers; once: true is times: 1
//	  repeat: true              # may answer again after a result of a tool
//	  finish: stop              # stop, length, tool or filter; default: derived from the answer
//	  tokens: {input: 10, output: 5, cacheRead: 0, cacheWrite: 0}
//	  silent: true              # the answer does not report its usage
//	  delay: {first: 1s, chunk: 10ms}
//	  chunk: 5
//	  break: {how: cut, after: 20}  # cut, hang (until the client disconnects) or error, after so many bytes
//	- error: {status: 429, message: slow down, retryAfter: 2}  # or body, which is sent unchanged
//	fallback: {text: "I have no answer to that."}
//
// The first turn that matches answers. After a message of the user each turn answers at most once, so that after a tool's result
// the next matching turn is chosen; repeat removes that limit.
//
// Token counts that a turn does not set are estimated as a quarter of the bytes, at least one. An answer is truncated to the
// limit of the request.
package scripted

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/caisson-dev/caisson"
)

// The operations of the APIs that a model serves. The condition "api" limits a turn to requests of one of the first four.
const (
	apiChat       = "chat"         // OpenAI's chat completions
	apiResponses  = "responses"    // OpenAI's responses
	apiMessages   = "messages"     // Anthropic's messages
	apiGenerate   = "generate"     // Gemini's generateContent and streamGenerateContent
	apiEmbeddings = "embeddings"   // OpenAI's embeddings
	apiCount      = "count_tokens" // Anthropic's count_tokens
	apiModels     = "models"       // the list of models, in OpenAI's or Anthropic's format
)

// maxBody is the maximum size of a request body in bytes, the same as Anthropic's.
const maxBody = 32 << 20

// created is the date of all objects that have one, in Unix seconds: 2025-01-01T00:00:00Z.
const created = 1735689600

// A Model answers requests. Its only state is the number of answers of each turn. It is safe for concurrent use.
type Model struct {
	script *script
	used   []atomic.Int64 // number of answers by index of the turn
}

var _ http.Handler = (*Model)(nil)

// New parses a script. Errors are of kind Invalid and list everything that is wrong with the script.
func New(yaml []byte) (*Model, error) {
	s, err := parseScript(yaml)
	if err != nil {
		return nil, err
	}
	return &Model{script: s, used: make([]atomic.Int64, len(s.Turns))}, nil
}

// billFuncKey is the context key of the function that receives the number of charged tokens; WithBill sets it.
type billFuncKey struct{}

// WithBill returns a context for a request, with which the model reports the tokens that it charges. It calls bill once: with all
// tokens, before the last byte of the answer, or, if the answer breaks off, with the tokens of the part that was sent. Errors are
// not charged.
func WithBill(ctx context.Context, bill func(caisson.TokenCount)) context.Context {
	return context.WithValue(ctx, billFuncKey{}, bill)
}

// ServeHTTP answers a request. It panics with [http.ErrAbortHandler] where the script cuts the connection.
func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	anthropic := r.Header.Get("Anthropic-Version") != "" || r.Header.Get("X-Api-Key") != ""
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	api, ok := map[string]string{
		"POST /chat/completions": apiChat, "POST /responses": apiResponses, "POST /embeddings": apiEmbeddings,
		"POST /messages": apiMessages, "POST /messages/count_tokens": apiCount, "GET /models": apiModels,
	}[r.Method+" "+path]
	if _, _, generate := generatePath(r.URL.Path); generate && r.Method == http.MethodPost {
		api, ok = apiGenerate, true
	}
	if ok && api != apiModels {
		anthropic = api == apiMessages || api == apiCount
	}
	as := styleOpenAI
	switch {
	case anthropic:
		as = styleAnthropic
	case api == apiGenerate:
		as = styleGemini
	}
	var err error
	switch {
	case !ok:
		err = newError(http.StatusNotFound, "there is no "+r.Method+" "+matchPrefix(r.URL.Path))
	case !m.authentic(r.Header, as):
		err = newError(http.StatusUnauthorized, "the key is missing or not valid")
	case api == apiModels:
		m.list(w, anthropic)
	default:
		err = m.serve(w, r, api)
	}
	if err != nil {
		writeError(w, err, as)
	}
}

// authentic reports whether a request has the key that the script requires, or the script requires no key.
func (m *Model) authentic(h http.Header, as errorStyle) bool {
	if m.script.Key.IsZero() {
		return true
	}
	key, _ := strings.CutPrefix(h.Get("Authorization"), "Bearer ")
	if own := h.Get(map[errorStyle]string{styleAnthropic: "X-Api-Key", styleGemini: "X-Goog-Api-Key"}[as]); own != "" {
		key = own
	}
	return subtle.ConstantTimeCompare([]byte(key), []byte(m.script.Key.Reveal())) == 1
}

// serve answers a model call. If it returns an error, the caller responds with that instead.
func (m *Model) serve(w http.ResponseWriter, r *http.Request, api string) error {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return newError(http.StatusUnsupportedMediaType, "the body and its Content-Type must be application/json")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return newError(http.StatusRequestEntityTooLarge, "the body is larger than 32 MiB")
	} else if err != nil {
		return newError(http.StatusBadRequest, "the body did not arrive whole")
	}
	sum := sha256.Sum256(append([]byte(api+"\x00"), body...))
	id := hex.EncodeToString(sum[:12])
	switch api {
	case apiEmbeddings:
		return m.embed(w, r, body)
	case apiCount:
		return m.count(w, r, body)
	}
	parse := map[string]func([]byte) (*conversation, error){apiChat: parseChat, apiResponses: parseResponses, apiMessages: parseMessages}[api]
	if api == apiGenerate {
		parse = func(body []byte) (*conversation, error) { return parseGenerate(r, body) }
	}
	if api == apiMessages {
		if err := checkVersion(r.Header); err != nil {
			return err
		}
	}
	c, err := parse(body)
	if err != nil {
		return err
	}
	c.api = api
	if err := m.checkModel(c.model); err != nil {
		return err
	}
	if len(c.rounds) > maxRounds {
		return invalid("messages", "more rounds of tool calls than a script can follow")
	}
	t := m.script.Fallback
	if i := m.script.choose(c, m.used); i >= 0 {
		t = &m.script.Turns[i]
	}
	if t == nil {
		return invalid("", "no turn of the script matches, and it has no fallback")
	}
	a := m.answer(t, c, id)
	return a.write(w, r)
}

// checkModel returns an error if the model does not exist.
func (m *Model) checkModel(model string) error {
	for _, name := range m.script.Models {
		if name == model {
			return nil
		}
	}
	if len(m.script.Models) == 0 {
		return nil
	}
	return &apiError{status: http.StatusNotFound, message: "the model " + matchPrefix(model) + " does not exist", param: "model", code: "model_not_found"}
}

// list responds with the list of models.
func (m *Model) list(w http.ResponseWriter, anthropic bool) {
	models := m.script.Models
	if len(models) == 0 {
		models = []string{"scripted"}
	}
	data := []any{}
	for _, name := range models {
		if anthropic {
			data = append(data, object{"type": "model", "id": name, "display_name": name, "created_at": "2025-01-01T00:00:00Z"})
		} else {
			data = append(data, object{"id": name, "object": "model", "created": created, "owned_by": "scripted"})
		}
	}
	if anthropic {
		writeJSON(w, http.StatusOK, object{"data": data, "has_more": false, "first_id": models[0], "last_id": models[len(models)-1]})
		return
	}
	writeJSON(w, http.StatusOK, object{"object": "list", "data": data})
}

// object is a JSON object; it is encoded with its keys in sorted order.
type object = map[string]any

// encode returns v as JSON. It cannot fail for the values of this package.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(encode(v))
}
