package anthropic

import (
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

// blockFields lists the fields of content blocks, by type. Other types require the grant of provider tools, or are refused.
var blockFields = map[string][]string{
	"text":              {"type", "text", "cache_control", "citations"},
	"image":             {"type", "source", "cache_control"},
	"document":          {"type", "source", "title", "context", "citations", "cache_control"},
	"search_result":     {"type", "source", "title", "content", "citations", "cache_control"},
	"tool_use":          {"type", "id", "name", "input", "cache_control", "caller"},
	"tool_result":       {"type", "tool_use_id", "content", "is_error", "cache_control"},
	"tool_reference":    {"type", "tool_name", "cache_control"},
	"thinking":          {"type", "thinking", "signature"},
	"redacted_thinking": {"type", "data"},
	"compaction":        {"type", "content", "encrypted_content", "cache_control"},
	"container_upload":  {"type", "file_id", "cache_control"},
}

// providerBlocks lists the types of blocks that contain calls and results of tools that the provider runs.
var providerBlocks = []string{
	"server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result", "bash_code_execution_tool_result",
	"text_editor_code_execution_tool_result", "tool_search_tool_result", "mcp_tool_use", "mcp_tool_result", "advisor_tool_result",
}

// block checks one content block and its contents.
func (c *checker) block(w *strictjson.Walker) error {
	if w.Kind() != '{' {
		return strictjson.Refuse("", "it has to be an object with a type")
	}
	typ := string(w.Peek("type").Bytes())
	allowed, ok := blockFields[typ]
	if !ok {
		return c.providerBlock(typ, w.Skip())
	}
	return w.Object(func(name []byte) error {
		n := slices.Index(allowed, string(name))
		if n < 0 {
			return unknownField(clip(name))
		}
		switch {
		case w.Kind() == 'n': // a field that is null is skipped
			return nil
		case allowed[n] != "content":
			return strictjson.InField(c.blockField(typ, allowed[n], w.Skip()), allowed[n])
		case typ == "tool_result":
			return strictjson.InField(c.content(w, ""), "content")
		default:
			return strictjson.InField(c.content(w, "text"), "content")
		}
	})
}

// blockField checks a field, other than content, of a block of type typ.
func (c *checker) blockField(typ, name string, v strictjson.Value) error {
	switch name {
	case "cache_control":
		return c.cacheControl(v)
	case "file_id":
		c.unbounded = true
		return c.serverID(v)
	case "input":
		c.tokens += v.Growth()
		return nil
	case "source":
		switch typ {
		case "image":
			return c.image(v)
		case "document":
			return c.document(v)
		}
	case "citations", "caller":
		if v.Kind() != '{' && v.Kind() != '[' {
			return strictjson.Refuse("", "it has to be an object or an array")
		}
		return c.findIDs(v)
	}
	if name != "is_error" && v.Kind() != '"' {
		return strictjson.Refuse("", "it has to be a string")
	}
	return nil
}

// providerBlock checks a block with a call or a result of a tool that the provider runs, and refuses blocks of other types.
func (c *checker) providerBlock(typ string, v strictjson.Value) error {
	for _, t := range providerBlocks {
		if t != typ {
			continue
		}
		if !c.allow.ProviderTools {
			return strictjson.InField(refuseGrant("results of tools that the provider runs", caisson.GrantProviderTools), "type")
		}
		c.unbounded = true // encrypted results may be compressed, so their size does not bound their tokens
		return c.findIDs(v)
	}
	return strictjson.Refuse("type", "content of type %.40q is not known to the model gateway; send it as text", typ)
}

// image checks the source of an image.
func (c *checker) image(v strictjson.Value) error {
	switch typ := v.Get("type"); {
	case typ.Is("base64"):
		c.images++
		c.tokens += perImage - int64(len(v.Get("data")))
		return c.encoded(v)
	case typ.Is("url"):
		c.images++
		c.tokens += perImage
		return c.url(v)
	case typ.Is("file"):
		c.images++
		c.tokens += perImage
		return c.file(v)
	}
	return strictjson.Refuse("type", "it has to be base64, or url or file where these are granted")
}

// document checks the source of a document.
func (c *checker) document(v strictjson.Value) error {
	switch typ := v.Get("type"); {
	case typ.Is("base64"):
		// A page of a document is charged by its contents, and document files are compressed, so the size of a document does not
		// bound its tokens.
		c.unbounded = true
		c.tokens -= int64(len(v.Get("data")))
		return c.encoded(v)
	case typ.Is("text"):
		return c.encoded(v)
	case typ.Is("content"):
		if err := c.fields(v, "type", "content"); err != nil {
			return err
		}
		return strictjson.InField(c.content(v.Get("content").Walk(), ""), "content")
	case typ.Is("url"):
		c.unbounded = true
		return c.url(v)
	case typ.Is("file"):
		c.unbounded = true
		return c.file(v)
	}
	return strictjson.Refuse("type", "it has to be base64, text or content, or url or file where these are granted")
}

// encoded checks a source that contains the image or document itself, as base64 or text.
func (c *checker) encoded(v strictjson.Value) error {
	if err := c.fields(v, "type", "media_type", "data"); err != nil {
		return err
	}
	if v.Get("data").Kind() != '"' || v.Get("media_type").Kind() != '"' {
		return strictjson.Refuse("", "it needs the strings media_type and data")
	}
	return nil
}

// url checks a source that is a URL, which the provider fetches.
func (c *checker) url(v strictjson.Value) error {
	if !c.allow.RemoteURLs {
		return strictjson.InField(refuseGrant("URLs that the provider fetches", caisson.GrantRemoteURLs), "url")
	}
	if err := c.fields(v, "type", "url"); err != nil {
		return err
	}
	if s, ok := v.Get("url").Text(); !ok || !strings.HasPrefix(s, "https://") {
		return strictjson.Refuse("url", "it has to begin with https://")
	}
	return nil
}

// file checks a source that is a file stored at the provider.
func (c *checker) file(v strictjson.Value) error {
	if err := c.fields(v, "type", "file_id"); err != nil {
		return err
	}
	return strictjson.InField(c.serverID(v.Get("file_id")), "file_id")
}
