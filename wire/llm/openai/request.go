package openai

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

// Tokens that the upper bound of a request's input counts in addition to the bytes of its text, and the least output limits.
const (
	imageTokens        = 50_000 // tokens of an image; the highest number of any model so far is 48,169 (gpt-4o-mini, high detail)
	callOverhead       = 512    // tokens of the text that providers add to a conversation
	partOverhead       = 16     // tokens that providers add to each message, item and part of content
	toolsOverhead      = 1024   // tokens of the instructions for the use of tools
	toolOverhead       = 64     // tokens that providers add for each tool
	minOutput          = 1      // least output limit of a chat, in tokens
	minResponsesOutput = 16     // least output limit of a response, in tokens; OpenAI rejects smaller ones
)

// encodeRoom is the capacity that Parse reserves for the fields that Encode appends.
const encodeRoom = 512

// A request is the checked body of a request, with a copy of the parts that are forwarded to the provider.
type request struct {
	api        string   // operation of the request: chat, responses or embeddings
	out        []byte   // JSON of the forwarded fields, without the closing brace; has capacity for what Encode appends
	encoded    bool     // Encode was called and has used the capacity of out
	inputBound int64    // upper bound of the input tokens
	images     int64    // number of images; each counts as imageTokens tokens
	bounded    bool     // false: the input tokens have no bound
	ids        []string // ids in the body of objects that the provider stores, such as files

	model       string
	stream      bool
	outputLimit int64  // the lowest of the guest's output limits, in tokens; 0 if there is none
	obfuscation []byte // stream_options.include_obfuscation, if set
	hasStore    bool   // chat: the client has set store
	store       bool   // responses: the provider keeps the response; requires the grant "server-state"
	cacheKey    string // prompt_cache_key
}

var _ dialect.Request = (*request)(nil)

// Parse implements [dialect.Dialect]. It copies the supported fields of body.
func (Dialect) Parse(e dialect.Endpoint, body []byte, allow dialect.Allow) (dialect.Request, error) {
	v, err := strictjson.Parse(body)
	if err != nil {
		return nil, err
	}
	fields := chatFields
	switch e.API {
	case responses:
		fields = responsesFields
	case embeddings:
		fields = embeddingsFields
	}
	p := &parser{allow: allow, out: make([]byte, 0, len(v)+encodeRoom), request: request{api: e.API, bounded: true, store: allow.ServerState}}
	if err := p.object(v, fields); err != nil {
		return nil, err
	}
	if !p.hasInput {
		return nil, strictjson.Refuse(inputField(e.API), "the field is missing; the model needs input")
	}
	p.request.out = p.out[:len(p.out)-1]
	p.request.inputBound = int64(len(p.out)) + p.extraTokens + callOverhead
	return &p.request, nil
}

// inputField returns the name of the field that contains the input in the bodies of an API.
func inputField(api string) string {
	if api == chat {
		return "messages"
	}
	return "input"
}

func (r *request) Model() string             { return r.model }
func (r *request) Stream() bool              { return r.stream }
func (r *request) Input() (int64, bool)      { return r.inputBound, r.bounded }          // input tokens at most; false: no bound
func (r *request) Images() (n, tokens int64) { return r.images, r.images * imageTokens } // number, and their input tokens
func (r *request) ServerIDs() []string       { return r.ids }                            // ids of objects at the provider

// Output returns the requested output limit, 0 if there is none, and the least limit that the provider accepts, in tokens.
func (r *request) Output() (want, least int64) {
	switch r.api {
	case embeddings:
		return 0, 0
	case responses:
		return r.outputLimit, minResponsesOutput
	}
	return r.outputLimit, minOutput
}

// Encode returns the body for the provider: the forwarded fields, followed by the fields that the gateway sets.
func (r *request) Encode(t dialect.Target) ([]byte, error) {
	b := r.out
	if r.encoded {
		b = append(make([]byte, 0, len(b)+encodeRoom), b...)
	}
	r.encoded = true
	if len(b) > 1 {
		b = append(b, ',')
	}
	b = strictjson.Quote(append(b, `"model":`...), t.Model)
	if t.User != "" {
		b = strictjson.Quote(append(b, `,"user":`...), t.User)
	}
	if r.cacheKey != "" {
		sum := sha256.Sum256([]byte(t.User + "\x00" + r.cacheKey))
		b = append(b, `,"prompt_cache_key":"`...)
		b = append(hex.AppendEncode(b, sum[:16]), '"')
	}
	if r.stream {
		b = append(b, `,"stream":true`...)
		b = r.streamOptions(b)
	}
	if r.api == responses || r.hasStore {
		b = strconv.AppendBool(append(b, `,"store":`...), r.api == responses && r.store)
	}
	if t.Output > 0 && r.api != embeddings {
		b = append(append(append(b, `,"`...), r.limitName(t.LimitField)...), `":`...)
		b = strconv.AppendInt(b, t.Output, 10)
	}
	return append(b, '}'), nil
}

// limitName returns the name of the field for the output limit that the provider applies; chats is the name to use in chats, ""
// for the newer name. Only that field is sent: a field that the provider ignores does not limit the output, and some providers
// reject a request with two.
func (r *request) limitName(chats string) string {
	switch {
	case r.api == responses:
		return "max_output_tokens"
	case chats != "":
		return chats
	}
	return "max_completion_tokens"
}

// streamOptions appends stream_options to b, if there are any.
func (r *request) streamOptions(b []byte) []byte {
	usage := r.api == chat
	if !usage && r.obfuscation == nil {
		return b
	}
	b = append(b, `,"stream_options":{`...)
	if usage {
		b = append(b, `"include_usage":true`...)
	}
	if r.obfuscation != nil {
		if usage {
			b = append(b, ',')
		}
		b = append(append(b, `"include_obfuscation":`...), r.obfuscation...)
	}
	return append(b, '}')
}
