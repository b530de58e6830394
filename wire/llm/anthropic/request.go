package anthropic

import (
	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

// minThinking is the lowest value of thinking.budget_tokens that the API accepts, in tokens.
const minThinking = 1024

// request is a checked body. It is immutable after Parse.
type request struct {
	body            *strictjson.Object // forwarded fields, without those that Encode sets: model, max_tokens, service_tier, metadata
	countTokens     bool               // the endpoint is count_tokens
	model           string
	stream          bool
	max             int64    // max_tokens; 0 if missing
	thinkingBudget  int64    // thinking.budget_tokens; 0 if missing, or if thinking.type is not enabled
	budgetMayExceed bool     // thinkingBudget may exceed max_tokens, as a beta feature allows: thinking between tool calls
	tokens          int64    // upper bound of the input tokens, if bounded
	images          int64    // number of images
	bounded         bool     // false: the input tokens have no bound
	ids             []string // ids in the body of objects that the provider stores, such as files
}

var _ dialect.Request = (*request)(nil)

// Parse checks the body of a call of messages or count_tokens.
func (Dialect) Parse(e dialect.Endpoint, body []byte, allow dialect.Allow) (dialect.Request, error) {
	in, err := strictjson.Parse(body)
	if err != nil {
		return nil, err
	}
	if in.Kind() != '{' {
		return nil, strictjson.Refuse("", "the body has to be an object")
	}
	r := &request{body: &strictjson.Object{}, countTokens: e.API == "count_tokens"}
	c := checker{allow: allow, tokens: perRequest}
	for name, v := range in.Members() {
		if v.IsNull() {
			continue // null is equivalent to a missing field
		}
		if err := r.field(&c, string(name), v); err != nil {
			return nil, strictjson.InField(err, clip(name))
		}
	}
	switch {
	case r.body.Get("messages") == nil:
		return nil, strictjson.Refuse("messages", "it is missing; send an array of messages")
	case r.thinkingBudget > 0 && r.max > 0 && r.max <= minThinking:
		return nil, strictjson.Refuse("max_tokens", "thinking takes %d tokens at least; send more than that, or disable thinking", minThinking)
	}
	r.budgetMayExceed = allow.Beta && r.thinkingBudget >= r.max && r.max > 0
	r.tokens, r.images, r.bounded, r.ids = c.total(), c.images, !c.unbounded, c.ids
	return r, nil
}

// field checks a top-level field and keeps it if it is forwarded.
func (r *request) field(c *checker, name string, v strictjson.Value) (err error) {
	var ok bool
	switch name {
	case "model":
		if r.model, ok = v.Text(); !ok || len(r.model) > 256 {
			return strictjson.Refuse("", "it has to be a string of at most 256 bytes")
		}
		return nil // Encode sets the field
	case "messages":
		err = c.messages(v)
	case "system":
		err = c.content(v.Walk(), "text")
	case "tools":
		err = c.tools(v)
	case "tool_choice":
		err = c.fields(v, "type", "name", "disable_parallel_tool_use")
	case "thinking":
		err = r.thinking(c, v)
	case "cache_control":
		err = c.cacheControl(v)
	case "output_config":
		err = c.outputConfig(v)
	case "output_format":
		err = c.format(v)
	case "mcp_servers":
		// The provider calls the MCP servers and charges their responses as input, so the input tokens have no bound.
		if !c.allow.ProviderTools || !c.allow.RemoteURLs {
			return refuseGrant("servers that the provider calls", caisson.GrantProviderTools+" and "+caisson.GrantRemoteURLs)
		}
		c.unbounded = true
	case "context_management":
		if !c.allow.Beta {
			return nil // dropped, as is the beta header that belongs to it: agents send the field by default and work without it
		}
		c.unbounded = true // a compaction is a separate call of the model, whose input is charged too
	default:
		return r.callField(c, name, v)
	}
	if err == nil {
		r.keep(c, name, v)
	}
	return err
}

// keep adds a field to the fields that are forwarded, and its bytes to the bound of tokens.
func (r *request) keep(c *checker, name string, v strictjson.Value) {
	c.tokens += int64(len(v))
	r.body.Set(name, v)
}

// callField checks a field that requests to count_tokens do not have, and keeps it if it is forwarded.
func (r *request) callField(c *checker, name string, v strictjson.Value) error {
	if r.countTokens {
		return strictjson.Refuse("", "this field is not known here; send a request without it")
	}
	var ok bool
	switch name {
	case "max_tokens":
		if r.max, ok = v.Int(); !ok || r.max < 1 {
			return strictjson.Refuse("", "it has to be an integer of at least 1")
		}
		return nil // Encode sets the field
	case "metadata", "service_tier":
		return nil // Encode sets its own value
	case "stream":
		if r.stream, ok = v.Bool(); !ok {
			return strictjson.Refuse("", "it has to be true or false")
		}
	case "temperature", "top_p", "top_k":
		if v.Kind() != '0' {
			return strictjson.Refuse("", "it has to be a number")
		}
	case "stop_sequences":
		if err := checkStrings(v); err != nil {
			return err
		}
	case "container":
		if !c.allow.ServerState || !c.allow.ProviderTools {
			return refuseGrant("containers of the provider", caisson.GrantServerState+" and "+caisson.GrantProviderTools)
		}
		c.unbounded = true
		c.containerIDs(v)
	default:
		return strictjson.Refuse("", "this field is not known to the model gateway; send a request without it")
	}
	r.keep(c, name, v)
	return nil
}

// thinking checks the field thinking, and stores the budget of thinking tokens if it has one.
func (r *request) thinking(c *checker, v strictjson.Value) error {
	if err := c.fields(v, "type", "budget_tokens", "display"); err != nil {
		return err
	}
	b := v.Get("budget_tokens")
	if b == nil || b.IsNull() || !v.Get("type").Is("enabled") {
		return nil
	}
	n, ok := b.Int()
	if !ok || n < minThinking {
		return strictjson.Refuse("budget_tokens", "it has to be an integer of at least %d", minThinking)
	}
	r.thinkingBudget = n
	return nil
}

func (r *request) Model() string             { return r.model }
func (r *request) Stream() bool              { return r.stream }
func (r *request) Input() (int64, bool)      { return r.tokens, r.bounded }           // input tokens at most; false: no bound
func (r *request) Images() (n, tokens int64) { return r.images, r.images * perImage } // number, and their input tokens
func (r *request) ServerIDs() []string       { return r.ids }                         // ids of objects at the provider

// Output returns max_tokens, 0 if missing, and the least value of it that the API accepts.
func (r *request) Output() (int64, int64) {
	switch {
	case r.countTokens:
		return 0, 0
	case r.thinkingBudget > 0:
		return r.max, minThinking + 1
	default:
		return r.max, 1
	}
}

// Encode returns the body for the provider: the forwarded fields, and those that the gateway sets.
func (r *request) Encode(t dialect.Target) ([]byte, error) {
	b := r.body.Clone()
	b.SetText("model", t.Model)
	if r.countTokens {
		return b.Value(), nil
	}
	if _, least := r.Output(); t.Output < least {
		return nil, caisson.Errorf(caisson.Internal, "a limit of %d tokens of output, where %d is the least", t.Output, least)
	}
	b.SetInt("max_tokens", t.Output)
	// Service tiers other than the standard one have other prices.
	b.SetText("service_tier", "standard_only")
	if t.User != "" {
		m := &strictjson.Object{}
		m.SetText("user_id", t.User)
		b.Set("metadata", m.Value())
	}
	if r.thinkingBudget >= t.Output && !r.budgetMayExceed {
		// The API requires budget_tokens to be below max_tokens. If possible, a quarter of max_tokens is left for the answer.
		thinking := b.Get("thinking").Object()
		thinking.SetInt("budget_tokens", max(minThinking, t.Output-max(1, t.Output/4)))
		b.Set("thinking", thinking.Value())
	}
	return b.Value(), nil
}
