package openai

import (
	"github.com/caisson-dev/caisson/llm/internal/strictjson"
)

// Fields of an item in the input of a response. checkItem has checked the type.
var itemFields = map[string]rule{
	"type": scalar, "role": scalar, "status": scalar, "phase": scalar, "name": scalar, "namespace": scalar, "call_id": scalar,
	"content": checkContent, "arguments": scalar, "input": scalar, "output": checkOutput,
	"summary": checkSummary, "encrypted_content": scalar, "action": structure, "operation": structure, "max_output_length": scalar,
	"pending_safety_checks": raw, "acknowledged_safety_checks": raw,
}

// Items whose id must be forwarded, because they have no other contents.
var (
	referenceFields = map[string]rule{"type": scalar, "id": (*parser).serverID}
	reasoningFields = map[string]rule{
		"type": scalar, "id": (*parser).serverID, "status": scalar, "summary": checkSummary, "content": checkContent, "encrypted_content": scalar,
	}
	clientItems = set("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
		"local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output",
		"computer_call", "computer_call_output", "reasoning")
)

// Tools that the client runs.
var (
	clientTools = set("function", "custom", "local_shell", "apply_patch", "computer", "computer_use_preview")
	toolFields  = map[string]rule{
		"type": scalar, "name": scalar, "description": scalar, "parameters": structure, "strict": scalar, "format": structure,
		"function": checkFunction, "custom": checkFunction, "display_width": scalar, "display_height": scalar, "environment": scalar,
		"cache_control": checkCacheControl,
	}
)

// namespaceFields are the fields of a group of tools that the client runs.
var namespaceFields = map[string]rule{"type": scalar, "name": scalar, "description": scalar, "tools": checkNamespace}

// functionFields are the fields of function and custom.
var functionFields = map[string]rule{
	"name": scalar, "description": scalar, "parameters": raw, "strict": scalar, "format": raw, "cache_control": checkCacheControl,
}

func checkFunction(p *parser, v value) error {
	if v.IsNull() {
		return nil
	}
	p.extra += v.Growth()
	return p.object(v, functionFields)
}

func checkFunctions(p *parser, v value) error {
	if v.IsNull() {
		return nil
	}
	return p.list(v, checkFunction)
}

func checkItems(p *parser, v value) error {
	p.input = true
	if v.Kind() == '"' {
		return raw(p, v)
	}
	return p.list(v, checkItem)
}

func checkItem(p *parser, v value) error {
	p.extra += partOverhead
	kind := v.Get("type").Bytes()
	switch {
	case v.Kind() != '{':
		return strictjson.Refuse("", "the item is no object; send one")
	case kind == nil && v.Get("role") != nil: // the short form of a message
	case kind == nil || string(kind) == "item_reference":
		p.r.bounded = false
		if v.Get("id") == nil {
			return strictjson.Refuse("type", "the item has neither a type nor a role; send one")
		}
		return p.object(v, referenceFields)
	case string(kind) == "reasoning" && p.allow.ServerState && v.Get("encrypted_content").Bytes() == nil && !v.Get("id").IsNull():
		p.r.bounded = false
		return p.object(v, reasoningFields)
	case clientItems[string(kind)]:
	case p.allow.ProviderTools && string(kind) != "":
		p.r.bounded = false
		return p.provider(v)
	default:
		return strictjson.Refuse("type", "items of type %.40q are not granted or not known here; tools that the provider runs need the grant provider-tools", kind)
	}
	// The id is removed: with it, the provider would look up stored contents of the item.
	return p.object(v, itemFields)
}

// checkOutput copies the result of a tool: text, parts, or a screenshot.
func checkOutput(p *parser, v value) error {
	switch v.Kind() {
	case '[':
		return p.list(v, checkPart)
	case '{':
		return checkPart(p, v)
	}
	return scalar(p, v)
}

func checkSummary(p *parser, v value) error {
	if v.Kind() != '[' {
		return scalar(p, v)
	}
	return p.list(v, checkPart)
}

func checkTools(p *parser, v value) error {
	if v.IsNull() {
		return nil
	}
	p.extra += toolsOverhead
	return p.list(v, checkTool)
}

func checkTool(p *parser, v value) error {
	p.extra += toolOverhead
	kind := v.Get("type").Bytes()
	switch {
	case clientTools[string(kind)]:
		return p.object(v, toolFields)
	case string(kind) == "namespace":
		return p.object(v, namespaceFields)
	case p.allow.ProviderTools && v.Kind() == '{':
		p.r.bounded = false
		return p.provider(v)
	}
	return strictjson.Refuse("type", "tools of type %.40q are run by the provider or not known here; use functions, or ask for the grant provider-tools", kind)
}

// checkNamespace copies the tools of a group. Only functions of the client are allowed, because tools of the provider would
// otherwise be forwarded without a check of their type.
func checkNamespace(p *parser, v value) error {
	return p.list(v, func(p *parser, x value) error {
		p.extra += toolOverhead
		if kind := x.Get("type"); !kind.Is("function") && !kind.Is("custom") {
			return strictjson.Refuse("type", "a namespace can have functions and custom tools; send tools of other types outside of it")
		}
		return p.object(x, toolFields)
	})
}

// provider copies a tool of the provider, or its result, and records the ids in it.
func (p *parser) provider(v value) error {
	if err := p.references(v, maxNesting); err != nil {
		return err
	}
	return raw(p, v)
}

// references checks ids of server-side state and URLs that the provider fetches, at any level.
func (p *parser) references(v value, levels int) error {
	if levels == 0 {
		return strictjson.Refuse("", "the value nests deeper than anything that the API knows; make it flatter")
	}
	for name, x := range v.Members() {
		switch string(name) {
		case "server_url":
			if !p.allow.RemoteURLs {
				return strictjson.Refuse("server_url", "a server that the provider calls is a way out that is not granted; ask for the grant remote-urls, too")
			}
		case "file_id", "file_ids", "vector_store_ids", "container", "container_id", "skill_id", "image_url", "file_url":
			if err := p.reference(string(name), x); err != nil {
				return strictjson.In(err, string(name))
			}
		}
		if err := p.references(x, levels-1); err != nil {
			return strictjson.In(err, string(name))
		}
	}
	for i, x := range v.Elements() {
		if err := p.references(x, levels-1); err != nil {
			return strictjson.At(err, i)
		}
	}
	return nil
}

// reference checks one value without copying it.
func (p *parser) reference(name string, v value) error {
	check := p.serverID
	switch name {
	case "image_url":
		check = p.image
	case "file_url":
		check = p.url
	}
	keep := len(p.out)
	defer func() { p.out = p.out[:keep] }()
	if v.Kind() == '"' {
		return check(v)
	}
	for i, x := range v.Elements() {
		if x.Kind() == '"' {
			if err := check(x); err != nil {
				return strictjson.At(err, i)
			}
		}
	}
	return nil
}
