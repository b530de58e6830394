package gemini

import (
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

// request is a checked body. It is immutable after Parse.
type request struct {
	model       string
	stream      bool
	countTokens bool               // the endpoint is countTokens
	body        *strictjson.Object // forwarded fields, without generationConfig
	config      *strictjson.Object // generationConfig, without maxOutputTokens
	max         int64              // maxOutputTokens; 0 if missing
	tokens      int64              // upper bound of the input tokens, if bounded
	images      int64              // number of images
	imageTokens int64              // part of tokens that is for images
	bounded     bool               // false: the input tokens have no bound
	ids         []string           // ids in the body of objects that the provider stores, such as files
}

var _ dialect.Request = (*request)(nil)

// Parse checks the body of a call that generates content or counts tokens.
func (Dialect) Parse(e dialect.Endpoint, body []byte, allow dialect.Allow) (dialect.Request, error) {
	in, err := strictjson.Parse(body)
	if err != nil {
		return nil, err
	}
	r := &request{model: e.Model, stream: e.Stream, countTokens: e.Free, body: &strictjson.Object{}, config: &strictjson.Object{}}
	c := checker{allow: allow, tokens: perRequest}
	if r.countTokens {
		err = r.readCount(&c, in)
	} else {
		err = r.read(&c, in)
	}
	if err != nil {
		return nil, err
	}
	r.tokens, r.images, r.imageTokens, r.bounded, r.ids = c.tokens, c.images, c.imageTokens, !c.unbounded, c.ids
	return r, nil
}

// read checks a GenerateContentRequest and keeps the forwarded fields, each under its JSON name.
func (r *request) read(c *checker, in strictjson.Value) error {
	err := eachField(in, func(name string, v strictjson.Value) (err error) {
		switch name {
		case "contents":
			err = eachElement(v, c.content)
		case "systemInstruction":
			err = c.content(v)
		case "tools":
			c.tokens += perTools
			err = eachElement(v, c.tool)
		case "toolConfig":
			err = c.toolConfig(v)
		case "safetySettings":
			err = eachElement(v, c.safety)
		case "cachedContent":
			c.unbounded = true
			err = c.serverID(v)
		case "generationConfig":
			c.tokens += int64(len(v)) // a schema counts, because it is part of the model's input
			return eachField(v, func(name string, v strictjson.Value) error { return r.configField(c, name, v) })
		case "model", "serviceTier":
			return nil // dropped: the path contains the model, and other service tiers have other prices
		default:
			return errUnknown
		}
		if err == nil {
			c.tokens += int64(len(v))
			r.body.Set(name, v)
		}
		return err
	})
	if err == nil && r.body.Get("contents") == nil {
		return strictjson.Refuse("contents", "it is missing; send an array of contents")
	}
	return err
}

// readCount checks a CountTokensRequest, which has the fields of a GenerateContentRequest, or one in generateContentRequest.
func (r *request) readCount(c *checker, in strictjson.Value) error {
	whole := in.Get("generateContentRequest")
	if whole == nil {
		whole = in.Get("generate_content_request")
	}
	if whole == nil {
		return r.read(c, in)
	}
	if err := eachField(in, func(name string, _ strictjson.Value) error {
		if name != "generateContentRequest" && name != "model" {
			return errUnknown
		}
		return nil
	}); err != nil {
		return err
	}
	return strictjson.InField(r.read(c, whole), "generateContentRequest")
}

// configField checks a field of generationConfig.
func (r *request) configField(c *checker, name string, v strictjson.Value) (err error) {
	switch name {
	case "maxOutputTokens":
		var ok bool
		if r.max, ok = v.Int(); !ok || r.max < 1 {
			return strictjson.Refuse("", "it has to be an integer of at least 1")
		}
		return nil // Encode sets the field
	case "candidateCount":
		if n, ok := v.Int(); !ok || n != 1 {
			return strictjson.Refuse("", "only one candidate is supported; request 1, or call several times")
		}
	case "responseModalities":
		err = eachElement(v, func(x strictjson.Value) error {
			if !x.Is("TEXT") {
				return strictjson.Refuse("", "only TEXT is possible: other answers cannot be metered")
			}
			return nil
		})
	case "thinkingConfig":
		err = checkFields(v, "includeThoughts", "thinkingBudget", "thinkingLevel")
	case "responseSchema", "responseJsonSchema":
		c.tokens += v.Growth()
	case "stopSequences", "responseMimeType", "temperature", "topP", "topK", "seed", "presencePenalty", "frequencyPenalty", "responseLogprobs", "logprobs", "mediaResolution":
		if v.Kind() == '{' {
			return strictjson.Refuse("", "it may not be an object")
		}
	default:
		return errUnknown
	}
	if err == nil {
		r.config.Set(name, v)
	}
	return err
}

func (r *request) Model() string             { return r.model }
func (r *request) Stream() bool              { return r.stream }
func (r *request) Input() (int64, bool)      { return r.tokens, r.bounded }     // input tokens at most; false: no bound
func (r *request) Images() (n, tokens int64) { return r.images, r.imageTokens } // number, and their input tokens
func (r *request) ServerIDs() []string       { return r.ids }                   // ids of objects at the provider

// Output returns maxOutputTokens, 0 if missing, and the least value of it that the API accepts.
func (r *request) Output() (int64, int64) {
	if r.countTokens {
		return 0, 0
	}
	return r.max, 1
}

// Encode implements [dialect.Request]. The API has no field for a user. Thinking tokens count towards the output limit.
func (r *request) Encode(t dialect.Target) ([]byte, error) {
	b := r.body.Clone()
	if !r.countTokens {
		if t.Output < 1 {
			return nil, caisson.Errorf(caisson.Internal, "a limit of %d tokens of output", t.Output)
		}
		config := r.config.Clone()
		config.SetInt("maxOutputTokens", t.Output)
		b.Set("generationConfig", config.Value())
		return b.Value(), nil
	}
	// A CountTokensRequest supports instructions and tools only within generateContentRequest.
	b.Set("generationConfig", r.config.Value())
	b.SetText("model", "models/"+strings.TrimPrefix(t.Model, "models/"))
	whole := &strictjson.Object{}
	whole.Set("generateContentRequest", b.Value())
	return whole.Value(), nil
}
