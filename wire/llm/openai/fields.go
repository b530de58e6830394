package openai

import (
	"regexp"

	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

type value = strictjson.Value

// A rule checks v, a value in the body of a request, and appends to p.out what is forwarded to the provider in place of v. If it
// appends nothing, the field is dropped. An error refuses the whole body.
type rule func(p *parser, v value) error

// parser checks the body of a request and copies the parts that are forwarded to the provider.
type parser struct {
	request     request       // the result of the parser; the rules set its fields
	allow       dialect.Allow // grants that apply to the request
	out         []byte        // the forwarded parts so far
	extraTokens int64         // tokens that the input can have besides one for each byte of out; less than 0 if out has bytes that are not text
	hasInput    bool          // the body has input for the model
	hasType     bool          // the current object has a type or role
}

// Supported fields of the bodies of chats, responses and embeddings.
var (
	chatFields = map[string]rule{
		"messages": checkMessages,
		"model":    optional(checkModel), "stream": checkStream, "stream_options": checkStreamOptions, "n": checkAnswerCount,
		"max_tokens": optional(checkLimit), "max_completion_tokens": optional(checkLimit),
		"prompt_cache_key": checkCacheKey, "store": checkStore, "modalities": checkModalities,
		"tools": optional(checkTools), "tool_choice": copyCountingGrowth, "parallel_tool_calls": copyScalar, "functions": optional(checkFunctions), "function_call": copyCountingGrowth,
		"web_search_options": optional(checkWebSearch),
		"temperature":        copyScalar, "top_p": copyScalar, "frequency_penalty": copyScalar, "presence_penalty": copyScalar, "logit_bias": copyRaw,
		"logprobs": copyScalar, "top_logprobs": copyScalar, "response_format": copyCountingGrowth, "seed": copyScalar, "stop": copyRaw,
		"reasoning_effort": copyScalar, "verbosity": copyScalar,
		// Fields that only providers with a compatible API support.
		"top_k": copyScalar, "min_p": copyScalar, "top_a": copyScalar, "repetition_penalty": copyScalar, "reasoning": copyRaw, "include_reasoning": copyScalar,
		"thinking": copyRaw,

		"audio": refuseField("audio answers are priced separately and cannot be bounded; leave the field out"),
	}
	responsesFields = map[string]rule{
		"input": checkItems, "instructions": optional(checkInstructions),
		"model": optional(checkModel), "stream": checkStream, "stream_options": checkStreamOptions,
		"max_output_tokens": optional(checkLimit),
		"prompt_cache_key":  checkCacheKey, "store": checkStore, "background": checkBackground,
		"previous_response_id": unbounded((*parser).serverID), // unbounded, because the earlier turns are not in the body
		"tools":                optional(checkTools), "tool_choice": copyCountingGrowth, "parallel_tool_calls": copyScalar, "max_tool_calls": copyScalar,
		"temperature": copyScalar, "top_p": copyScalar, "top_logprobs": copyScalar, "text": copyCountingGrowth, "reasoning": copyRaw, "truncation": copyScalar, "include": copyRaw,

		"conversation": refuseField("conversations cannot be made through this gateway; send the whole input, or previous_response_id"),
		"prompt":       refuseField("stored prompts belong to the provider's account; send instructions and input"),
	}
	embeddingsFields = map[string]rule{
		"input": checkEmbeddingInput, "model": optional(checkModel), "dimensions": copyScalar, "encoding_format": copyScalar,
	}
)

// init adds rules that refuse fields which make proxies of the API call another server, or change the request or its answer.
func init() {
	for _, name := range []string{"api_base", "base_url", "api_key", "extra_headers", "extra_body", "fallbacks", "models", "plugins", "mock_response"} {
		no := refuseField("the field would change where or how the call is made, which the gateway decides; leave it out")
		chatFields[name], responsesFields[name], embeddingsFields[name] = no, no, no
	}
}

// object applies the rules in fields to the members of the object v, drops the other members, and appends the result to p.out.
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
			return strictjson.InField(err, string(name))
		}
		if len(p.out) == empty {
			p.out = p.out[:before]
		}
	}
	p.out = append(p.out, '}')
	return nil
}

// list applies the rule each to the elements of v, which must be an array, and appends the resulting array to p.out.
func (p *parser) list(v value, each rule) error {
	if v.Kind() != '[' {
		return strictjson.Refuse("", "the value is not an array; send one")
	}
	p.out = append(p.out, '[')
	for i, x := range v.Elements() {
		if i > 0 {
			p.out = append(p.out, ',')
		}
		if err := each(p, x); err != nil {
			return strictjson.InElement(err, i)
		}
	}
	p.out = append(p.out, ']')
	return nil
}

// copyRaw copies v unchanged to p.out.
func copyRaw(p *parser, v value) error {
	p.out = append(p.out, v...)
	return nil
}

// copyCountingGrowth copies a value unchanged and counts, as tokens, the bytes by which it may grow if a provider decodes it and
// encodes it again for the model.
func copyCountingGrowth(p *parser, v value) error {
	p.extraTokens += v.Growth()
	return copyRaw(p, v)
}

// copyScalar copies a value unchanged, and refuses objects and arrays.
func copyScalar(p *parser, v value) error {
	if k := v.Kind(); k == '{' || k == '[' {
		return strictjson.Refuse("", "the value is an object or an array; send a string, a number, true or false")
	}
	return copyRaw(p, v)
}

// optional returns a rule that drops null, and applies r to other values.
func optional(r rule) rule {
	return func(p *parser, v value) error {
		if v.IsNull() {
			return nil
		}
		return r(p, v)
	}
}

// unbounded returns a rule that drops null. For other values it applies r, and marks the request as one whose input tokens cannot
// be bounded by the size of its body.
func unbounded(r rule) rule {
	return optional(func(p *parser, v value) error {
		p.request.bounded = false
		return r(p, v)
	})
}

// refuseField returns a rule for a field that must be missing or null; why is the message of the error.
func refuseField(why string) rule {
	return optional(func(*parser, value) error { return strictjson.Refuse("", "%s", why) })
}

// checkLimit keeps the lowest of the output limits in a body. Encode writes it under the name that the provider obeys.
func checkLimit(p *parser, v value) error {
	n, ok := v.Int()
	if !ok || n < 1 {
		return strictjson.Refuse("", "the limit is not a positive integer; send one, or leave the field out")
	}
	if p.request.outputLimit == 0 || n < p.request.outputLimit {
		p.request.outputLimit = n
	}
	return nil
}

func checkModel(p *parser, v value) error {
	s, ok := v.Text()
	if !ok || len(s) > 256 {
		return strictjson.Refuse("", "the value is no name of a model; send a string")
	}
	p.request.model = s
	return nil
}

func checkStream(p *parser, v value) error {
	b, ok := v.Bool()
	if !ok && !v.IsNull() {
		return strictjson.Refuse("", "the value is neither true nor false")
	}
	p.request.stream = b
	return nil
}

func checkStreamOptions(p *parser, v value) error {
	if o := v.Get("include_obfuscation"); o != nil {
		if _, ok := o.Bool(); !ok {
			return strictjson.Refuse("include_obfuscation", "the value is neither true nor false")
		}
		p.request.obfuscation = o
	}
	return nil
}

// checkAnswerCount checks n, the number of requested answers, which must be 1.
func checkAnswerCount(p *parser, v value) error {
	if n, ok := v.Int(); v.IsNull() || ok && n == 1 {
		return nil
	}
	return strictjson.Refuse("", "only one answer per call is supported; leave n out, or send 1")
}

// checkCacheKey checks and stores the field prompt_cache_key, which Encode hashes together with the user.
func checkCacheKey(p *parser, v value) error {
	s, ok := v.Text()
	if !ok && !v.IsNull() || len(s) > 1024 {
		return strictjson.Refuse("", "the value is not a string of at most 1024 bytes")
	}
	p.request.cacheKey = s
	return nil
}

// checkStore checks the field store. The provider stores the response only with the grant server-state.
func checkStore(p *parser, v value) error {
	b, ok := v.Bool()
	if !ok && !v.IsNull() {
		return strictjson.Refuse("", "the value is neither true nor false")
	}
	p.request.hasStore = true
	if ok {
		p.request.store = b && p.allow.ServerState
	}
	return nil
}

// checkBackground drops the field background if it is false, and refuses it if it is true.
func checkBackground(p *parser, v value) error {
	if b, ok := v.Bool(); ok && !b || v.IsNull() {
		return nil
	}
	return strictjson.Refuse("", "a call in the background cannot be metered; leave the field out and stream the answer")
}

// checkModalities refuses answers other than text, and drops the field.
func checkModalities(p *parser, v value) error {
	for i, m := range v.Elements() {
		if !m.Is("text") {
			return strictjson.InElement(strictjson.Refuse("", "only text is supported, because other answers are priced separately; send [\"text\"]"), i)
		}
	}
	return nil
}

// checkWebSearch copies web_search_options, the options of a web search by the provider, to p.out if such tools are granted.
func checkWebSearch(p *parser, v value) error {
	if !p.allow.ProviderTools {
		return strictjson.Refuse("", "a search that the provider runs is not granted; leave it out, or request the grant provider-tools")
	}
	p.request.bounded = false
	return copyRaw(p, v)
}

// checkInstructions checks that the instructions in a body are a text, and copies them to p.out.
func checkInstructions(p *parser, v value) error {
	if v.Kind() != '"' {
		return strictjson.Refuse("", "the value is not a string; send instructions as text")
	}
	return copyRaw(p, v)
}

// checkEmbeddingInput checks and copies the input of an embeddings request: a text or a list of texts, tokens or lists of tokens.
func checkEmbeddingInput(p *parser, v value) error {
	p.hasInput = true
	text := func(_ *parser, x value) error {
		switch x.Kind() {
		case '"':
			return p.copyInputText(x)
		case '0':
			return copyRaw(p, x)
		case '[':
			for i, t := range x.Elements() {
				if t.Kind() != '0' {
					return strictjson.InElement(strictjson.Refuse("", "the value is no token; send texts, or lists of numbers"), i)
				}
			}
			return copyRaw(p, x)
		}
		return strictjson.Refuse("", "the value is neither text nor tokens; nothing else can be embedded here")
	}
	if v.Kind() == '"' {
		return p.copyInputText(v)
	}
	return p.list(v, func(_ *parser, x value) error {
		p.extraTokens += partOverhead
		return text(p, x)
	})
}

// fetchable matches texts that proxies interpret as an address to fetch, or as data to decode, and embed.
var fetchable = regexp.MustCompile(`(?i)^\s*(?:gs://|s3://|files/|https?://|data:)`)

// copyInputText copies a text of which the guest requests an embedding.
func (p *parser) copyInputText(v value) error {
	if !p.allow.RemoteURLs && fetchable.Match(v.Bytes()) {
		return strictjson.Refuse("", "a text that begins as the address of something may be fetched, which is not granted; put other words first, or ask for the grant remote-urls")
	}
	return copyRaw(p, v)
}
