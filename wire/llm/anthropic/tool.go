package anthropic

import (
	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

// clientTools are the types of the tools that the API defines and the client runs, without the date that ends each type.
var clientTools = []string{"bash_", "text_editor_", "computer_", "memory_"}

// toolFields are the fields of tools that the client runs.
var toolFields = []string{
	"type", "name", "description", "input_schema", "cache_control", "strict", "eager_input_streaming", "input_examples", "defer_loading", "allowed_callers",
	"display_width_px", "display_height_px", "display_number", "enable_zoom", "max_characters",
}

func (c *checker) tools(v strictjson.Value) error {
	if v.Kind() != '[' {
		return strictjson.Refuse("", "it has to be an array of tools")
	}
	c.tokens += perTools
	for i, t := range v.Elements() {
		if err := c.tool(t); err != nil {
			return strictjson.InElement(err, i)
		}
	}
	return nil
}

func (c *checker) tool(v strictjson.Value) error {
	if v.Kind() != '{' {
		return strictjson.Refuse("", "it has to be an object with name and input_schema")
	}
	c.tokens += perTool + v.Growth()
	switch typ := v.Get("type"); {
	case typ == nil || typ.IsNull() || typ.Is("custom"):
	case isClientTool(typ.Bytes()):
		c.tokens += perClientTool
	case typ.Kind() != '"':
		return strictjson.Refuse("type", "it has to be a string")
	case !c.allow.ProviderTools:
		return strictjson.InField(refuseGrant("tools that the provider runs", caisson.GrantProviderTools), "type")
	default:
		c.unbounded = true // the provider runs the tool and charges its results as input
		if err := c.findIDs(v); err != nil {
			return err
		}
		return strictjson.InField(c.cacheControl(v.Get("cache_control")), "cache_control")
	}
	if err := c.fields(v, toolFields...); err != nil {
		return err
	}
	if err := c.callers(v.Get("allowed_callers")); err != nil {
		return strictjson.InField(err, "allowed_callers")
	}
	return strictjson.InField(c.cacheControl(v.Get("cache_control")), "cache_control")
}

// callers checks allowed_callers of a tool: "direct" means the model itself, other callers are tools that the provider runs.
func (c *checker) callers(v strictjson.Value) error {
	if v == nil || v.IsNull() {
		return nil
	}
	if err := checkStrings(v); err != nil {
		return err
	}
	for i, x := range v.Elements() {
		if !x.Is("direct") && !c.allow.ProviderTools {
			return strictjson.InElement(refuseGrant("callers other than direct", caisson.GrantProviderTools), i)
		}
	}
	return nil
}

// isClientTool reports whether typ is one of clientTools and a date: bash_20250124, but not bash_code_execution_20250825.
func isClientTool(typ []byte) bool {
	for _, prefix := range clientTools {
		if len(typ) == len(prefix)+8 && string(typ[:len(prefix)]) == prefix {
			for _, b := range typ[len(prefix):] {
				if b < '0' || b > '9' {
					return false
				}
			}
			return true
		}
	}
	return false
}
