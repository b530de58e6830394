package gemini

import (
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

// The bytes of a request bound its input tokens: a token has at least one byte of text, and the JSON around a text is longer than
// what the provider adds to it. The constants bound the tokens of what is in the input and not in the bytes.
const (
	perRequest = 64   // tokens that the API adds to every request
	perTools   = 1024 // tokens of the API's prompt about tools
	perTool    = 64   // tokens of the API's prompt about each tool
)

// checker checks a body: it refuses unsupported fields and sums up the maximum number of tokens.
type checker struct {
	allow       dialect.Allow // grants that apply to the request
	tokens      int64         // maximum number of input tokens of the fields checked so far
	images      int64         // number of images
	imageTokens int64         // part of tokens that is for images
	unbounded   bool          // the body does not bound the input tokens
	ids         []string      // ids in the body of objects that the provider stores, such as files
}

// errUnknown refuses an unknown field.
var errUnknown = strictjson.Refuse("", "this field is not known to the model gateway; send a request without it")

// refuseGrant returns the refusal of a feature that a grant would allow.
func refuseGrant(what, grant string) error {
	return strictjson.Refuse("", "%s are not granted to this sandbox; leave them out, or request the grant %s", what, grant)
}

// eachField calls each for the fields of an object, with their JSON names. The API accepts two spellings of a name, such as
// maxOutputTokens and max_output_tokens. Both at once are refused, because it is unknown which one the API would use. Fields that
// are null are skipped.
func eachField(v strictjson.Value, each func(name string, v strictjson.Value) error) error {
	if v.Kind() != '{' {
		return strictjson.Refuse("", "it has to be an object")
	}
	var room [16]string
	seen := room[:0]
	for n, x := range v.Members() {
		name := jsonName(string(n))
		if slices.Contains(seen, name) {
			return strictjson.Refuse(clip(name), "this field occurs twice, in two spellings; send it once")
		}
		if len(seen) == 64 {
			return strictjson.Refuse("", "it has more fields than any object of the API")
		}
		seen = append(seen, name)
		if x.IsNull() {
			continue
		}
		if err := each(name, x); err != nil {
			return strictjson.InField(err, clip(name))
		}
	}
	return nil
}

// jsonName returns the JSON name of a field, given either spelling of it. It returns other names unchanged.
func jsonName(s string) string {
	if !strings.Contains(s, "_") || strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") || strings.Contains(s, "__") || strings.ToLower(s) != s {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '_' {
			b = append(b, s[i])
			continue
		}
		i++
		if s[i] < 'a' || s[i] > 'z' {
			return s
		}
		b = append(b, s[i]-'a'+'A')
	}
	return string(b)
}

// clip truncates a name from a guest for use in an error message.
func clip(name string) string { return name[:min(len(name), 64)] }

// checkFields checks that an object has no fields other than allowed.
func checkFields(v strictjson.Value, allowed ...string) error {
	return eachField(v, func(name string, _ strictjson.Value) error {
		if !slices.Contains(allowed, name) {
			return errUnknown
		}
		return nil
	})
}

// eachElement calls each for the elements of an array. The API accepts a single element in place of an array.
func eachElement(v strictjson.Value, each func(strictjson.Value) error) error {
	if v.Kind() != '[' {
		return each(v)
	}
	for i, x := range v.Elements() {
		if err := each(x); err != nil {
			return strictjson.InElement(err, i)
		}
	}
	return nil
}

// checkString checks that v is a string.
func checkString(v strictjson.Value) error {
	if v.Kind() != '"' {
		return strictjson.Refuse("", "it has to be a string")
	}
	return nil
}

// safety checks one safety setting.
func (c *checker) safety(v strictjson.Value) error { return checkFields(v, "category", "threshold") }

// serverID adds v, the id of an object that the provider stores, to c.ids, or refuses it without the grant server-state.
func (c *checker) serverID(v strictjson.Value) error {
	id, ok := v.Text()
	switch {
	case !ok || id == "" || len(id) > 256:
		return strictjson.Refuse("", "it has to be an id of at most 256 bytes")
	case !c.allow.ServerState:
		return refuseGrant("ids of server-side state", caisson.GrantServerState)
	}
	c.ids = append(c.ids, id)
	return nil
}

// tool checks one element of tools: declarations of functions, or a tool that the provider runs.
func (c *checker) tool(v strictjson.Value) error {
	return eachField(v, func(name string, v strictjson.Value) error {
		switch name {
		case "functionDeclarations":
			return eachElement(v, c.function)
		case "googleSearch", "googleSearchRetrieval", "codeExecution", "googleMaps", "computerUse":
			return c.providerTool(c.allow.ProviderTools, caisson.GrantProviderTools)
		case "urlContext", "mcpServers":
			return c.providerTool(c.allow.ProviderTools && c.allow.RemoteURLs, caisson.GrantProviderTools+" and "+caisson.GrantRemoteURLs)
		case "fileSearch":
			if err := c.providerTool(c.allow.ProviderTools, caisson.GrantProviderTools); err != nil {
				return err
			}
			return eachField(v, func(name string, v strictjson.Value) error {
				if name == "fileSearchStoreNames" {
					return eachElement(v, c.serverID)
				}
				if name != "topK" && name != "metadataFilter" {
					return errUnknown
				}
				return nil
			})
		}
		return errUnknown
	})
}

// providerTool checks that a tool that the provider runs is granted. The results of such a tool are charged as input, so the
// tokens of the request have no bound.
func (c *checker) providerTool(allowed bool, grant string) error {
	if !allowed {
		return refuseGrant("tools that the provider runs", grant)
	}
	c.unbounded = true
	return nil
}

// function checks the declaration of a function.
func (c *checker) function(v strictjson.Value) error {
	c.tokens += perTool + v.Growth()
	return checkFields(v, "name", "description", "behavior", "parameters", "parametersJsonSchema", "response", "responseJsonSchema")
}

// toolConfig checks the field toolConfig.
func (c *checker) toolConfig(v strictjson.Value) error {
	return eachField(v, func(name string, v strictjson.Value) error {
		switch name {
		case "functionCallingConfig":
			return checkFields(v, "mode", "allowedFunctionNames")
		case "retrievalConfig", "includeServerSideToolInvocations":
			return c.providerTool(c.allow.ProviderTools, caisson.GrantProviderTools)
		}
		return errUnknown
	})
}
