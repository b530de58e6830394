package openai

import (
	"regexp"

	"github.com/caisson-dev/caisson/llm/dialect"
	"github.com/caisson-dev/caisson/llm/internal/strictjson"
)

type value = strictjson.Value

// A rule checks a value and appends to p.out what is forwarded of it. If it appends nothing, the field is dropped.
// An error refuses the whole body.
type rule func(p *parser, v value) error

// parser copies the forwarded parts of one body.
type parser struct {
	r     request
	allow dialect.Allow
	out   []byte
	extra int64 // tokens in addition to the bytes of out; negative for bytes that are not text
	input bool  // the body has input for the model
	typed bool  // the current object has a type or role
}

// Supported fields of the three kinds of bodies.
var (
	chatFields = map[string]rule{
		"messages": checkMessages,
		"model":    checkModel, "stream": checkStream, "stream_options": checkStreamOptions, "n": checkOne,
		"max_tokens": checkLimit, "max_completion_tokens": checkLimit,
		"prompt_cache_key": checkCacheKey, "store": checkStore, "modalities": checkModalities,
		"tools": checkTools, "tool_choice": structure, "parallel_tool_calls": scalar, "functions": checkFunctions, "function_call": structure,
		"web_search_options": checkWebSearch,
		"temperature":        scalar, "top_p": scalar, "frequency_penalty": scalar, "presence_penalty": scalar, "logit_bias": raw,
		"logprobs": scalar, "top_logprobs": scalar, "response_format": structure, "seed": scalar, "stop": raw,
		"reasoning_effort": scalar, "verbosity": scalar,
		// Fields of compatible providers.
		"top_k": scalar, "min_p": scalar, "top_a": scalar, "repetition_penalty": scalar, "reasoning": raw, "include_reasoning": scalar,
		"thinking": raw,

		"audio": refused("answers in sound are priced apart and cannot be bounded; leave the field out"),
	}
	responsesFields = map[string]rule{
		"input": checkItems, "instructions": checkInstructions,
		"model": checkModel, "stream": checkStream, "stream_options": checkStreamOptions,
		"max_output_tokens": checkLimit,
		"prompt_cache_key":  checkCacheKey, "store": checkStore, "background": checkBackground,
		"previous_response_id": checkPrevious,
		"tools":                checkTools, "tool_choice": structure, "parallel_tool_calls": scalar, "max_tool_calls": scalar,
		"temperature": scalar, "top_p": scalar, "top_logprobs": scalar, "text": structure, "reasoning": raw, "truncation": scalar, "include": raw,

		"conversation": refused("conversations cannot be made through this gateway; send the whole input, or previous_response_id"),
		"prompt":       refused("stored prompts belong to the provider's account; send instructions and input"),
	}
	embeddingsFields = map[string]rule{
		"input": checkEmbed, "model": checkModel, "dimensions": scalar, "encoding_format": scalar,
	}
)

func init() {
	// Proxies of this API interpret these fields as instructions to call another server or to call in another way.
	for _, name := range []string{"api_base", "base_url", "api_key", "extra_headers", "extra_body", "fallbacks", "models", "plugins", "mock_response"} {
		no := refused("the field would change where or how the call is made, which the gateway decides; leave it out")
		chatFields[name], responsesFields[name], embeddingsFields[name] = no, no, no
	}
}

// object copies the members of v that are in fields.
func (p *parser) object(v value, fields map[string]rule) error {
	if v.Kind() != '{' {
		return strictjson.Refuse("", "the value is no object; send one")
	}
	p.out = append(p.out, '{')
	for name, x := range v.Members() {
		r, known := fields[string(name)]
		if !known {
			continue
		}
		before := len(p.out)
		if p.out[before-1] != '{' {
			p.out = append(p.out, ',')
		}
		p.out = append(append(append(p.out, '"'), name...), `":`...)
		empty := len(p.out)
		if err := r(p, x); err != nil {
			return strictjson.In(err, string(name))
		}
		if len(p.out) == empty {
			p.out = p.out[:before]
		}
	}
	p.out = append(p.out, '}')
	return nil
}

// list copies the elements of an array.
func (p *parser) list(v value, each rule) error {
	if v.Kind() != '[' {
		return strictjson.Refuse("", "the value is no array; send one")
	}
	p.out = append(p.out, '[')
	for i, x := range v.Elements() {
		if i > 0 {
			p.out = append(p.out, ',')
		}
		if err := each(p, x); err != nil {
			return strictjson.At(err, i)
		}
	}
	p.out = append(p.out, ']')
	return nil
}

func raw(p *parser, v value) error {
	p.out = append(p.out, v...)
	return nil
}

// structure is raw for values that a provider may decode and encode again in a longer form for the model.
func structure(p *parser, v value) error {
	p.extra += v.Growth()
	return raw(p, v)
}

// scalar is raw for values that are neither objects nor arrays.
func scalar(p *parser, v value) error {
	if k := v.Kind(); k == '{' || k == '[' {
		return strictjson.Refuse("", "the value is an object or an array; send a string, a number, true or false")
	}
	return raw(p, v)
}

func refused(why string) rule {
	return func(_ *parser, v value) error {
		if v.IsNull() {
			return nil
		}
		return strictjson.Refuse("", "%s", why)
	}
}

// checkLimit keeps the lowest limit. Encode writes it under the name that the provider obeys.
func checkLimit(p *parser, v value) error {
	if v.IsNull() {
		return nil
	}
	n, ok := v.Int()
	if !ok || n < 1 {
		return strictjson.Refuse("", "the limit is no positive whole number; send one, or leave the field out")
	}
	if p.r.want == 0 || n < p.r.want {
		p.r.want = n
	}
	return nil
}

func checkModel(p *parser, v value) error {
	if v.IsNull() {
		return nil
	}
	s, ok := v.Text()
	if !ok || len(s) > 256 {
		return strictjson.Refuse("", "the value is no name of a model; send a string")
	}
	p.r.model = s
	return nil
}

func checkStream(p *parser, v value) error {
	b, ok := v.Bool()
	if !ok && !v.IsNull() {
		return strictjson.Refuse("", "the value is neither true nor false")
	}
	p.r.stream = b
	return nil
}

func checkStreamOptions(p *parser, v value) error {
	if o := v.Get("include_obfuscation"); o != nil {
		if _, ok := o.Bool(); !ok {
			return strictjson.Refuse("include_obfuscation", "the value is neither true nor false")
		}
		p.r.obfuscation = o
	}
	return nil
}

func checkOne(p *parser, v value) error {
	if n, ok := v.Int(); v.IsNull() || ok && n == 1 {
		return nil
	}
	return strictjson.Refuse("", "one answer can be had per call; leave n out, or send 1")
}

func checkCacheKey(p *parser, v value) error {
	s, ok := v.Text()
	if !ok && !v.IsNull() || len(s) > 1024 {
		return strictjson.Refuse("", "the value is no string of at most 1024 bytes")
	}
	p.r.cacheKey = s
	return nil
}

func checkStore(p *parser, v value) error {
	b, ok := v.Bool()
	if !ok && !v.IsNull() {
		return strictjson.Refuse("", "the value is neither true nor false")
	}
	p.r.storeAsked = true
	if ok {
		p.r.store = b && p.allow.ServerState
	}
	return nil
}

func checkBackground(p *parser, v value) error {
	if b, ok := v.Bool(); ok && !b || v.IsNull() {
		return nil
	}
	return strictjson.Refuse("", "a call in the background cannot be metered; leave the field out and stream the answer")
}

func checkPrevious(p *parser, v value) error {
	if v.IsNull() {
		return nil
	}
	if err := p.serverID(v); err != nil {
		return err
	}
	p.r.bounded = false // the earlier turns are not in this body
	return nil
}

func checkModalities(p *parser, v value) error {
	for i, m := range v.Elements() {
		if !m.Is("text") {
			return strictjson.At(strictjson.Refuse("", "only text can be had, as other answers are priced apart; send [\"text\"]"), i)
		}
	}
	return nil
}

func checkWebSearch(p *parser, v value) error {
	if v.IsNull() {
		return nil
	}
	if !p.allow.ProviderTools {
		return strictjson.Refuse("", "a search that the provider runs is not granted; leave it out, or ask for the grant provider-tools")
	}
	p.r.bounded = false
	return raw(p, v)
}

func checkInstructions(p *parser, v value) error {
	if v.IsNull() {
		return nil
	}
	if v.Kind() != '"' {
		return strictjson.Refuse("", "the value is no string; send instructions as text")
	}
	return raw(p, v)
}

// checkEmbed copies a text or tokens, or a list of them.
func checkEmbed(p *parser, v value) error {
	p.input = true
	text := func(_ *parser, x value) error {
		switch x.Kind() {
		case '"':
			return p.embedded(x)
		case '0':
			return raw(p, x)
		case '[':
			for i, t := range x.Elements() {
				if t.Kind() != '0' {
					return strictjson.At(strictjson.Refuse("", "the value is no token; send texts, or lists of numbers"), i)
				}
			}
			return raw(p, x)
		}
		return strictjson.Refuse("", "the value is neither text nor tokens; nothing else can be embedded here")
	}
	if v.Kind() == '"' {
		return p.embedded(v)
	}
	return p.list(v, func(_ *parser, x value) error {
		p.extra += partOverhead
		return text(p, x)
	})
}

// places matches texts that proxies interpret as an address to fetch, or as data to decode, and embed.
var places = regexp.MustCompile(`(?i)^\s*(?:gs://|s3://|files/|https?://|data:)`)

// embedded copies a text to be embedded.
func (p *parser) embedded(v value) error {
	if !p.allow.RemoteURLs && places.Match(v.Bytes()) {
		return strictjson.Refuse("", "a text that begins as the address of something may be fetched, which is not granted; put other words first, or ask for the grant remote-urls")
	}
	return raw(p, v)
}
