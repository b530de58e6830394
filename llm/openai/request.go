package openai

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"github.com/caisson-dev/caisson/llm/dialect"
	"github.com/caisson-dev/caisson/llm/internal/strictjson"
)

// What a body costs in tokens besides its bytes. All are far above what has been seen.
const (
	imageTokens    = 50_000 // the dearest image of any model so far takes 48,169 (gpt-4o-mini, high detail)
	callOverhead   = 512    // what providers put around a conversation
	partOverhead   = 16     // per message, item and part
	toolsOverhead  = 1024   // instructions that make a model use tools
	toolOverhead   = 64     // per tool
	leastOfOutput  = 1
	leastResponses = 16 // OpenAI refuses less
)

// room is for what Encode puts behind what passes, usually.
const room = 512

// A request is a body of which what passes has been copied.
type request struct {
	api     string
	out     []byte // {"name":value, ... of the fields that pass as they are; there is room behind it
	encoded bool   // the room is taken
	text    int64  // bound of input tokens
	images  int64  // each is imageTokens of text
	bounded bool
	ids     []string

	model       string
	stream      bool
	want        int64
	obfuscation []byte // stream_options.include_obfuscation, if given
	storeAsked  bool   // chat: the client knows of store
	store       bool   // responses, with server-state
	cacheKey    string
}

var _ dialect.Request = (*request)(nil)

// Parse copies from body what is known.
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
	p := &parser{allow: allow, out: make([]byte, 0, len(v)+room), r: request{api: e.API, bounded: true, store: allow.ServerState}}
	if err := p.object(v, fields); err != nil {
		return nil, err
	}
	if !p.input {
		return nil, strictjson.Refuse(inputField(e.API), "the field is missing; the model needs something to answer")
	}
	p.r.out = p.out[:len(p.out)-1]
	p.r.text = int64(len(p.out)) + p.extra + callOverhead
	return &p.r, nil
}

func inputField(api string) string {
	if api == chat {
		return "messages"
	}
	return "input"
}

func (r *request) Model() string             { return r.model }
func (r *request) Stream() bool              { return r.stream }
func (r *request) Input() (int64, bool)      { return r.text, r.bounded }
func (r *request) Images() (n, tokens int64) { return r.images, r.images * imageTokens }
func (r *request) ServerIDs() []string       { return r.ids }

func (r *request) Output() (want, least int64) {
	switch r.api {
	case embeddings:
		return 0, 0
	case responses:
		return r.want, leastResponses
	}
	return r.want, leastOfOutput
}

// Encode puts what the gateway decides after what passes.
func (r *request) Encode(t dialect.Target) ([]byte, error) {
	b := r.out
	if r.encoded {
		b = append(make([]byte, 0, len(b)+room), b...)
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
	if r.api == responses || r.storeAsked {
		b = strconv.AppendBool(append(b, `,"store":`...), r.api == responses && r.store)
	}
	if t.Output > 0 && r.api != embeddings {
		b = append(append(append(b, `,"`...), r.limitName(t.Limit)...), `":`...)
		b = strconv.AppendInt(b, t.Output, 10)
	}
	return append(b, '}'), nil
}

// limitName returns the field that the provider obeys. What it ignores would be no limit, and some refuse both at once.
func (r *request) limitName(chats string) string {
	switch {
	case r.api == responses:
		return "max_output_tokens"
	case chats != "":
		return chats
	}
	return "max_completion_tokens"
}

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
