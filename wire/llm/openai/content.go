package openai

import (
	"bytes"

	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

// messageFields are the fields of a message of a chat.
var messageFields = map[string]rule{
	"role": checkRole, "content": checkContent, "name": copyScalar, "refusal": copyScalar,
	"tool_calls": copyCountingGrowth, "tool_call_id": copyScalar, "function_call": copyCountingGrowth,
	// Fields with a model's reasoning. OpenAI does not have them; some other providers require that clients send them back.
	"reasoning_content": copyScalar, "reasoning": copyRaw, "reasoning_details": copyRaw, "thinking_blocks": optional(checkThinking),
	"cache_control": checkCacheControl,
	"audio":         refuseField("audio cannot be bounded; send text"),
}

// partFields are the fields of a part of content, in chats and responses. Each field has the same meaning for all types, so the
// order of the fields does not matter.
var partFields = map[string]rule{
	"type": checkPartType, "text": copyScalar, "refusal": copyScalar, "annotations": copyRaw, "logprobs": copyRaw,
	"image_url": checkImage, "detail": copyScalar, "file": checkFile,
	"file_id": unbounded((*parser).serverID), "file_data": unbounded((*parser).copyURL), "file_url": unbounded((*parser).copyURL), "filename": copyScalar,
	"stdout": copyScalar, "stderr": copyScalar, "outcome": copyCountingGrowth, // the result of a shell command
	"cache_control": checkCacheControl,
	"input_audio":   refuseField("audio cannot be bounded; send text"),
}

var (
	thinkingFields = map[string]rule{ // fields of a block of type thinking or redacted_thinking
		"type": copyScalar, "thinking": copyScalar, "signature": copyScalar, "data": copyScalar, "cache_control": checkCacheControl,
	}
	imageFields = map[string]rule{"url": checkImageURL, "detail": copyScalar} // fields of image_url in chats
	// Files are compressed, so their size does not bound the tokens.
	fileFields = map[string]rule{"file_id": unbounded((*parser).serverID), "file_data": unbounded((*parser).copyURL), "filename": copyScalar}
	partTypes  = stringSet("text", "refusal", "image_url", "file", "input_text", "output_text", "input_image", "input_file",
		"summary_text", "reasoning_text", "computer_screenshot")
)

// stringSet returns the set of names.
func stringSet(names ...string) map[string]bool {
	m := map[string]bool{}
	for _, n := range names {
		m[n] = true
	}
	return m
}

func checkMessages(p *parser, v value) error {
	p.hasInput = true
	return p.list(v, checkMessage)
}

// checkMessage checks a message of a chat, which must have a role, and copies its known fields to p.out.
func checkMessage(p *parser, v value) error {
	p.extraTokens += partOverhead
	p.hasType = false
	if err := p.object(v, messageFields); err != nil {
		return err
	}
	if !p.hasType {
		return strictjson.Refuse("role", "the message has no role; send one")
	}
	return nil
}

// checkRole checks that the role of a message is a text, and copies it to p.out.
func checkRole(p *parser, v value) error {
	if v.Kind() != '"' {
		return strictjson.Refuse("", "the role is not a string")
	}
	p.hasType = true
	return copyRaw(p, v)
}

// checkContent checks the content of a message or item, a scalar or a list of parts, and copies it to p.out.
func checkContent(p *parser, v value) error {
	if v.Kind() != '[' {
		return copyScalar(p, v)
	}
	// checkPart changes p.hasType, which refers to the message at this point.
	typed := p.hasType
	err := p.list(v, checkPart)
	p.hasType = typed
	return err
}

// checkPart checks a part of content, a text or an object of a supported type, and copies its known fields to p.out.
func checkPart(p *parser, v value) error {
	if v.Kind() == '"' {
		return copyRaw(p, v)
	}
	p.extraTokens += partOverhead
	p.hasType = false
	if err := p.object(v, partFields); err != nil {
		return err
	}
	if !p.hasType && v.Get("stdout") == nil {
		return strictjson.Refuse("type", "the part has no type; send one")
	}
	return nil
}

func checkPartType(p *parser, v value) error {
	switch b := v.Bytes(); {
	case partTypes[string(b)]:
		p.hasType = true
		return copyRaw(p, v)
	case v.Is("input_audio"):
		return strictjson.Refuse("", "audio cannot be bounded; send text")
	default:
		return strictjson.Refuse("", "content of type %.40q is not known here; send text, images or files", b)
	}
}

// checkImage checks image_url in a part, which is an object with a URL in chats, otherwise a URL, and copies it to p.out.
func checkImage(p *parser, v value) error {
	switch v.Kind() {
	case '{':
		return p.object(v, imageFields)
	case 'n':
		return nil
	}
	return checkImageURL(p, v)
}

func checkImageURL(p *parser, v value) error {
	if err := p.copyImageURL(v); err != nil {
		return err
	}
	p.request.images++
	p.extraTokens += imageTokens - int64(len(v)) // an image counts as imageTokens, and not by its bytes as text does
	return nil
}

// copyImageURL copies the URL of an image to p.out: a data URL, or one that the provider may fetch. It refuses data URLs of other
// things: some providers accept documents and videos in place of an image, and their tokens have no bound.
func (p *parser) copyImageURL(v value) error {
	if bytes.HasPrefix(v, []byte(`"data:`)) && !bytes.HasPrefix(v.Bytes(), []byte("data:image/")) {
		return strictjson.Refuse("", "the data: URL is of no image; send data:image/..., or other data as a file")
	}
	return p.copyURL(v)
}

// copyURL copies a data URL to p.out, or an HTTP URL if the guest has the grant remote-urls: the provider fetches it.
func (p *parser) copyURL(v value) error {
	switch {
	case v.Kind() != '"':
		return strictjson.Refuse("", "the value is not a URL; send a string")
	case bytes.HasPrefix(v, []byte(`"data:`)):
	case !p.allow.RemoteURLs:
		return strictjson.Refuse("", "what the provider would fetch is a way out that is not granted; send a data: URL, or ask for the grant remote-urls")
	case !bytes.HasPrefix(v, []byte(`"https://`)) && !bytes.HasPrefix(v, []byte(`"http://`)):
		return strictjson.Refuse("", "the value is neither a data: nor an http URL")
	}
	return copyRaw(p, v)
}

func checkFile(p *parser, v value) error { return p.object(v, fileFields) }

// serverID copies to p.out the id of an object that the provider stores, such as a file, if the guest has the grant server-state.
// The gateway checks later that the guest's account has created the object.
func (p *parser) serverID(v value) error {
	id, ok := v.Text()
	switch {
	case !ok || id == "" || len(id) > 256:
		return strictjson.Refuse("", "the value is not an id")
	case !p.allow.ServerState:
		return strictjson.Refuse("", "server-side state is not granted; send the whole input, or request the grant server-state")
	}
	p.request.ids = append(p.request.ids, id)
	return copyRaw(p, v)
}

// checkThinking checks a list of blocks with a model's thinking, which some proxies require to be sent back, and copies it to
// p.out. Blocks of other types are refused, because they would be interpreted as content.
func checkThinking(p *parser, v value) error {
	return p.list(v, func(p *parser, x value) error {
		if kind := x.Get("type"); !kind.Is("thinking") && !kind.Is("redacted_thinking") {
			return strictjson.Refuse("type", "only blocks of type thinking and redacted_thinking are allowed; send other blocks as content")
		}
		return p.object(x, thinkingFields)
	})
}

// checkCacheControl appends the default kind of cache to p.out in place of v, because longer lifetimes cost more.
func checkCacheControl(p *parser, v value) error {
	if !v.IsNull() {
		p.out = append(p.out, `{"type":"ephemeral"}`...)
	}
	return nil
}
