package anthropic

import (
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/wire/llm/dialect"
	"github.com/caisson-dev/caisson/wire/llm/internal/strictjson"
)

// The bytes of a request bound its input tokens: a token has at least one byte of text, and the JSON around a text is longer than
// what the provider adds to it. The constants bound the tokens of what is in the input and not in the bytes.
const (
	perRequest    = 64   // tokens that the API adds to every request
	perTools      = 1024 // tokens of the API's prompt about tools: 346 for recent models, 530 for old ones
	perTool       = 64   // tokens of the API's prompt about each tool
	perClientTool = 1600 // tokens for bash, text editor, computer or memory: a description of at most 735, and a prompt of 499
	perFormat     = 1024 // tokens of the API's prompt about structured output
	perImage      = 5000 // tokens of an image after the API has resized it: at most 4784, at the highest resolution of any model
)

// maxDepth limits the nesting of content, because a level is read once more for each level above it.
const maxDepth = 8

// checker checks a body: it refuses unsupported fields and sums up the maximum number of tokens.
type checker struct {
	allow     dialect.Allow // grants that apply to the request
	tokens    int64         // maximum number of input tokens of the fields checked so far
	images    int64         // number of images; the field tokens includes perImage for each
	unbounded bool          // the body does not bound the input tokens
	hourCache bool          // the request writes to the cache for an hour
	ids       []string      // ids in the body of objects that the provider stores, such as files
	depth     int           // current nesting depth of content
}

// total returns the maximum number of input tokens. It is 1.6 times as high if the request writes to the cache for an hour, which
// costs 1.6 times as much as writing for five minutes; price lists contain only the price for five minutes.
func (c *checker) total() int64 {
	if c.hourCache {
		return fromHourly(c.tokens)
	}
	return c.tokens
}

// fromHourly converts a number of tokens that are cached for an hour to the number of tokens cached for five minutes that has the
// same price, rounded up. The prices are 2 and 1.25 times that of input, so that the factor is 1.6.
func fromHourly(n int64) int64 { return n + (n*3+4)/5 }

// refuseGrant returns the refusal of a feature that a grant would allow.
func refuseGrant(what, grant string) error {
	return strictjson.Refuse("", "%s are not granted to this sandbox; leave them out, or request the grant %s", what, grant)
}

// unknownField returns the refusal of a field that the gateway does not know.
func unknownField(name string) error {
	return strictjson.Refuse(name, "this field is not known to the model gateway; send a request without it")
}

// fields checks that v is an object with no fields other than allowed.
func (c *checker) fields(v strictjson.Value, allowed ...string) error {
	if v.Kind() != '{' {
		return strictjson.Refuse("", "it has to be an object")
	}
	for name := range v.Members() {
		if !slices.Contains(allowed, string(name)) {
			return unknownField(clip(name))
		}
	}
	return nil
}

// clip truncates a name from a guest for use in an error message.
func clip(name []byte) string { return string(name[:min(len(name), 64)]) }

// checkStrings checks that v is an array of strings.
func checkStrings(v strictjson.Value) error {
	if v.Kind() != '[' {
		return strictjson.Refuse("", "it has to be an array of strings")
	}
	for i, x := range v.Elements() {
		if x.Kind() != '"' {
			return strictjson.InElement(strictjson.Refuse("", "it has to be a string"), i)
		}
	}
	return nil
}

func (c *checker) messages(v strictjson.Value) error {
	if v.Kind() != '[' {
		return strictjson.Refuse("", "it has to be an array of messages")
	}
	w := v.Walk()
	return w.Array(func(i int) error { return strictjson.InElement(c.message(w), i) })
}

func (c *checker) message(w *strictjson.Walker) error {
	if w.Kind() != '{' {
		return strictjson.Refuse("", "it has to be an object with role and content")
	}
	return w.Object(func(name []byte) error {
		switch string(name) {
		case "role":
			switch string(w.Skip().Bytes()) {
			case "user", "assistant", "system":
				return nil
			}
			return strictjson.Refuse("role", "it has to be user, assistant or system")
		case "content":
			return strictjson.InField(c.content(w, ""), "content")
		}
		return unknownField(clip(name))
	})
}

// content checks a string or an array of blocks. If only is not "", the blocks must have that type.
func (c *checker) content(w *strictjson.Walker, only string) error {
	if w.Kind() == '"' {
		return nil // the Walker skips the value
	}
	if w.Kind() != '[' {
		return strictjson.Refuse("", "it has to be a string or an array of content blocks")
	}
	if c.depth++; c.depth > maxDepth {
		return strictjson.Refuse("", "it nests deeper than anything that the API knows; make it flatter")
	}
	defer func() { c.depth-- }()
	return w.Array(func(i int) error {
		if only != "" && !w.Peek("type").Is(only) {
			return strictjson.InElement(strictjson.Refuse("type", "only %s is possible here", only), i)
		}
		return strictjson.InElement(c.block(w), i)
	})
}

// cacheControl checks a cache breakpoint, which may be missing.
func (c *checker) cacheControl(v strictjson.Value) error {
	if v == nil || v.IsNull() {
		return nil
	}
	if err := c.fields(v, "type", "ttl", "scope"); err != nil {
		return err
	}
	if v.Get("scope") != nil && !c.allow.Beta {
		return strictjson.InField(refuseGrant("betas", caisson.GrantBeta), "scope")
	}
	if !v.Get("type").Is("ephemeral") {
		return strictjson.Refuse("type", "only ephemeral is supported")
	}
	switch ttl := v.Get("ttl"); {
	case ttl == nil || ttl.Is("5m"):
	case ttl.Is("1h"):
		c.hourCache = true
	default:
		return strictjson.Refuse("ttl", "it has to be 5m or 1h")
	}
	return nil
}

// outputConfig checks the field output_config.
func (c *checker) outputConfig(v strictjson.Value) error {
	if err := c.fields(v, "effort", "format", "task_budget"); err != nil {
		return err
	}
	if v.Get("task_budget") != nil && !c.allow.Beta {
		return strictjson.InField(refuseGrant("betas", caisson.GrantBeta), "task_budget")
	}
	if f := v.Get("format"); f != nil && !f.IsNull() {
		return strictjson.InField(c.format(f), "format")
	}
	return nil
}

// format checks the format of a structured answer, which contains a JSON schema.
func (c *checker) format(v strictjson.Value) error {
	if err := c.fields(v, "type", "schema", "name"); err != nil {
		return err
	}
	c.tokens += perFormat + v.Growth()
	return nil
}

// serverID adds v, the id of an object that the provider stores, to c.ids, or refuses it without the grant server-state.
func (c *checker) serverID(v strictjson.Value) error {
	id, ok := v.Text()
	switch {
	case !ok || id == "" || len(id) > 256:
		return strictjson.Refuse("", "it has to be an id")
	case !c.allow.ServerState:
		return refuseGrant("ids of server-side state", caisson.GrantServerState)
	}
	c.ids = append(c.ids, id)
	return nil
}

// containerIDs adds the ids in v, the field container, to c.ids. The field is a string, or an object with id and skills.
func (c *checker) containerIDs(v strictjson.Value) {
	for _, id := range []strictjson.Value{v, v.Get("id")} {
		if s, ok := id.Text(); ok {
			c.ids = append(c.ids, s)
		}
	}
	for _, s := range v.Get("skills").Elements() {
		if id, ok := s.Get("skill_id").Text(); ok && !s.Get("type").Is("anthropic") {
			c.ids = append(c.ids, id)
		}
	}
}

// findIDs adds the ids of files and containers at any depth of v to c.ids, or refuses them without the grant server-state.
func (c *checker) findIDs(v strictjson.Value) error { return c.findIDsAt(v, 0) }

// findIDsAt is findIDs for a value within depth objects and arrays: it adds the ids of files and containers in v to c.ids.
func (c *checker) findIDsAt(v strictjson.Value, depth int) error {
	if depth > 2*maxDepth {
		return strictjson.Refuse("", "it nests deeper than anything that the API knows; make it flatter")
	}
	for name, x := range v.Members() {
		if n := string(name); n == "file_id" || n == "container_id" || n == "container" {
			if x.Kind() == '"' {
				if err := c.serverID(x); err != nil {
					return strictjson.InField(err, n)
				}
				continue
			}
		}
		if err := c.findIDsAt(x, depth+1); err != nil {
			return strictjson.InField(err, clip(name))
		}
	}
	for i, x := range v.Elements() {
		if err := c.findIDsAt(x, depth+1); err != nil {
			return strictjson.InElement(err, i)
		}
	}
	return nil
}
