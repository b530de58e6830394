package openai

import (
	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

// itemFields are the fields of an item in the input of a response. checkItem has checked the type.
var itemFields = map[string]rule{
	"type": copyScalar, "role": copyScalar, "status": copyScalar, "phase": copyScalar, "name": copyScalar, "namespace": copyScalar, "call_id": copyScalar,
	"content": checkContent, "arguments": copyScalar, "input": copyScalar, "output": checkOutput,
	"summary": checkSummary, "encrypted_content": copyScalar, "action": copyCountingGrowth, "operation": copyCountingGrowth, "max_output_length": copyScalar,
	"pending_safety_checks": copyRaw, "acknowledged_safety_checks": copyRaw,
}

// referenceFields and reasoningFields are the fields of items whose id is forwarded, because it leads to contents of the item
// that the provider has stored. clientItems are the types of items that require no grant.
var (
	referenceFields = map[string]rule{"type": copyScalar, "id": (*parser).serverID}
	reasoningFields = map[string]rule{
		"type": copyScalar, "id": (*parser).serverID, "status": copyScalar, "summary": checkSummary, "content": checkContent, "encrypted_content": copyScalar,
	}
	clientItems = stringSet("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
		"local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output",
		"computer_call", "computer_call_output", "reasoning")
)

// Types of tools that the client runs, and the fields of these tools.
var (
	clientTools = stringSet("function", "custom", "local_shell", "apply_patch", "computer", "computer_use_preview")
	toolFields  = map[string]rule{
		"type": copyScalar, "name": copyScalar, "description": copyScalar, "parameters": copyCountingGrowth, "strict": copyScalar, "format": copyCountingGrowth,
		"function": optional(checkFunction), "custom": optional(checkFunction), "display_width": copyScalar, "display_height": copyScalar, "environment": copyScalar,
		"cache_control": checkCacheControl,
	}
)

// namespaceFields are the fields of a namespace: a group of tools that the client runs.
var namespaceFields = map[string]rule{"type": copyScalar, "name": copyScalar, "description": copyScalar, "tools": checkNamespace}

// functionFields are the fields of tools of the types function and custom.
var functionFields = map[string]rule{
	"name": copyScalar, "description": copyScalar, "parameters": copyRaw, "strict": copyScalar, "format": copyRaw, "cache_control": checkCacheControl,
}

// checkFunction copies to p.out the known fields of the definition of a function or custom tool, which must be an object.
func checkFunction(p *parser, v value) error {
	p.extraTokens += v.Growth()
	return p.object(v, functionFields)
}

// checkFunctions checks the field functions of a chat, which is the older form of its tools, and copies it to p.out.
func checkFunctions(p *parser, v value) error {
	return p.list(v, checkFunction)
}

func checkItems(p *parser, v value) error {
	p.hasInput = true
	if v.Kind() == '"' {
		return copyRaw(p, v)
	}
	return p.list(v, checkItem)
}

// checkItem checks an item of the input of a responses request, and copies it to p.out. A type, if it has one, must be allowed.
func checkItem(p *parser, v value) error {
	p.extraTokens += partOverhead
	kind := v.Get("type").Bytes()
	switch {
	case v.Kind() != '{':
		return strictjson.Refuse("", "the item is no object; send one")
	case kind == nil && v.Get("role") != nil: // a message in its short form, without a type
	case kind == nil || string(kind) == "item_reference":
		p.request.bounded = false
		if v.Get("id") == nil {
			return strictjson.Refuse("type", "the item has neither a type nor a role; send one")
		}
		return p.object(v, referenceFields)
	case string(kind) == "reasoning" && p.allow.ServerState && v.Get("encrypted_content").Bytes() == nil && !v.Get("id").IsNull():
		p.request.bounded = false
		return p.object(v, reasoningFields)
	case clientItems[string(kind)]:
	case p.allow.ProviderTools && string(kind) != "":
		p.request.bounded = false
		return p.copyProviderTool(v)
	default:
		return strictjson.Refuse("type", "items of type %.40q are not granted or not known here; tools that the provider runs need the grant provider-tools", kind)
	}
	// The id is removed: with it, the provider would look up stored contents of the item.
	return p.object(v, itemFields)
}

// checkOutput checks the result of a tool, a scalar, a list of parts or a screenshot, and copies it to p.out.
func checkOutput(p *parser, v value) error {
	switch v.Kind() {
	case '[':
		return p.list(v, checkPart)
	case '{':
		return checkPart(p, v)
	}
	return copyScalar(p, v)
}

// checkSummary checks the summary of a model's reasoning, a scalar or a list of parts, and copies it to p.out.
func checkSummary(p *parser, v value) error {
	if v.Kind() != '[' {
		return copyScalar(p, v)
	}
	return p.list(v, checkPart)
}

func checkTools(p *parser, v value) error {
	p.extraTokens += toolsOverhead
	return p.list(v, checkTool)
}

// checkTool checks the definition of a tool, which the client runs, or the provider if that is granted, and copies it to p.out.
func checkTool(p *parser, v value) error {
	p.extraTokens += toolOverhead
	kind := v.Get("type").Bytes()
	switch {
	case clientTools[string(kind)]:
		return p.object(v, toolFields)
	case string(kind) == "namespace":
		return p.object(v, namespaceFields)
	case p.allow.ProviderTools && v.Kind() == '{':
		p.request.bounded = false
		return p.copyProviderTool(v)
	}
	return strictjson.Refuse("type", "tools of type %.40q are run by the provider or not known here; use functions, or ask for the grant provider-tools", kind)
}

// checkNamespace checks the tools of a namespace and copies them to p.out. Only functions and custom tools are allowed, which the
// client runs, because tools that the provider runs would otherwise be forwarded without a check of their type.
func checkNamespace(p *parser, v value) error {
	return p.list(v, func(p *parser, x value) error {
		p.extraTokens += toolOverhead
		if kind := x.Get("type"); !kind.Is("function") && !kind.Is("custom") {
			return strictjson.Refuse("type", "a namespace can have functions and custom tools; send tools of other types outside of it")
		}
		return p.object(x, toolFields)
	})
}

// copyProviderTool checks ids and URLs in a definition, call or result of a tool that the provider runs, and copies it to p.out.
func (p *parser) copyProviderTool(v value) error {
	if err := p.checkReferences(v, maxNesting); err != nil {
		return err
	}
	return copyRaw(p, v)
}

// checkReferences checks ids of objects at the provider, and URLs that it fetches, in v, which may nest at most levels deep.
func (p *parser) checkReferences(v value, levels int) error {
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
			if err := p.checkReference(string(name), x); err != nil {
				return strictjson.InField(err, string(name))
			}
		}
		if err := p.checkReferences(x, levels-1); err != nil {
			return strictjson.InField(err, string(name))
		}
	}
	for i, x := range v.Elements() {
		if err := p.checkReferences(x, levels-1); err != nil {
			return strictjson.InElement(err, i)
		}
	}
	return nil
}

// checkReference checks v, the value of the field name: a URL, or ids of stored objects. It records the ids and copies nothing.
func (p *parser) checkReference(name string, v value) error {
	check := p.serverID
	switch name {
	case "image_url":
		check = p.copyImageURL
	case "file_url":
		check = p.copyURL
	}
	keep := len(p.out)
	defer func() { p.out = p.out[:keep] }()
	if v.Kind() == '"' {
		return check(v)
	}
	for i, x := range v.Elements() {
		if x.Kind() == '"' {
			if err := check(x); err != nil {
				return strictjson.InElement(err, i)
			}
		}
	}
	return nil
}
