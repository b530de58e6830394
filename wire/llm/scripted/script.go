package scripted

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/strictyaml"
)

// Limits of a script.
const (
	maxScript  = 1 << 20                            // bytes of the YAML document
	maxTurns   = 1000                               // turns of a script, without the fallback
	maxText    = 64 << 10                           // bytes of a text, or of the arguments of a call
	maxCalls   = 32                                 // calls of tools in a turn
	maxPattern = 1000                               // bytes of a regular expression
	maxDelay   = caisson.Duration(10 * time.Minute) // time before an answer, or between the pieces of a stream
	maxTokens  = 1e9                                // limit of the token counts, and of the field times, of a turn
)

const (
	defaultChunk      = 24 // bytes of text in a piece of a stream
	defaultDimensions = 16 // numbers in an embedding
)

// script is a script as its YAML document has it; the package comment describes its fields.
type script struct {
	Models     []string       `yaml:"models"`     // models that are served; if empty, any model
	Key        caisson.Secret `yaml:"key"`        // API key that requests must have; if empty, none
	Chunk      int            `yaml:"chunk"`      // bytes of text in a piece of a stream, unless the turn sets it
	Delay      delay          `yaml:"delay"`      // of answers, unless their turn sets it
	Dimensions int            `yaml:"dimensions"` // numbers in an embedding, unless the request sets it
	Turns      []turn         `yaml:"turns"`      // the first one that matches a request answers it
	Fallback   *turn          `yaml:"fallback"`   // answers if no turn matches
}

// turn is one answer and its conditions; the package comment describes its fields.
type turn struct {
	When   conditions `yaml:"when"`   // conditions on the request
	Once   bool       `yaml:"once"`   // the same as Times: 1
	Times  int        `yaml:"times"`  // maximum number of answers with the turn; 0: no limit
	Repeat bool       `yaml:"repeat"` // the turn may answer again after the result of a tool

	Text   string          `yaml:"text"`   // text of the answer, with placeholders
	Calls  []toolCall      `yaml:"calls"`  // calls of tools that the answer contains
	Finish string          `yaml:"finish"` // reason for the end of the answer; "": derived from the answer
	Tokens *reportedTokens `yaml:"tokens"` // usage that the answer reports; nil: estimated from the texts
	Silent bool            `yaml:"silent"` // the answer does not report its usage
	Delay  *delay          `yaml:"delay"`  // nil: that of the script
	Chunk  int             `yaml:"chunk"`  // bytes of text in a piece of a stream; 0: that of the script
	Break  *breakOff       `yaml:"break"`  // how the answer breaks off; nil: it is complete
	Error  *failure        `yaml:"error"`  // error to send in place of an answer

	pattern, result *regexp.Regexp // compiled When.Pattern and When.ResultPattern, in this order; nil if not set
}

// conditions are the conditions of a turn on the request; all that are set must be met, those on a result by the same result.
type conditions struct {
	API           string `yaml:"api"`           // operation of the request: apiChat, apiResponses, apiMessages or apiGenerate
	Model         string `yaml:"model"`         // name of the requested model, or a prefix of the name, followed by "*"
	Last          string `yaml:"last"`          // text that the last message of the user must contain
	Pattern       string `yaml:"pattern"`       // regular expression that the last message of the user must match
	Tool          string `yaml:"tool"`          // name of a tool whose result the request must end with
	Result        string `yaml:"result"`        // text that a tool's result at the end of the request must contain
	ResultPattern string `yaml:"resultPattern"` // regular expression that a tool's result at the end of the request must match
}

// A toolCall is a call of a tool in an answer.
type toolCall struct {
	Name      string `yaml:"name"`      // name of the tool
	Arguments string `yaml:"arguments"` // JSON
}

// reportedTokens is the reported usage; nil values are derived from the text.
type reportedTokens struct {
	Input      *int64 `yaml:"input"`      // input tokens, without those read from or written to the cache
	Output     *int64 `yaml:"output"`     // output tokens
	CacheRead  int64  `yaml:"cacheRead"`  // input tokens read from the cache
	CacheWrite int64  `yaml:"cacheWrite"` // input tokens written to the cache
}

// A delay is the time before the first byte of an answer, and the time between the pieces of a stream.
type delay struct {
	First caisson.Duration `yaml:"first"` // time before the first byte of an answer
	Chunk caisson.Duration `yaml:"chunk"` // time between the pieces of a stream
}

// Ways to break off an answer.
const (
	breakCut   = "cut"   // closes the connection
	breakHang  = "hang"  // sends nothing more until the client disconnects
	breakError = "error" // sends an error in the format of the API
)

// A breakOff makes an answer end before it is complete.
type breakOff struct {
	How   string `yaml:"how"`   // breakCut, breakHang or breakError
	After int    `yaml:"after"` // number of bytes of text and arguments that are sent before the answer breaks off
}

// A failure is an error in place of an answer.
type failure struct {
	Status     int    `yaml:"status"`     // HTTP status
	Message    string `yaml:"message"`    // text of the error
	Body       string `yaml:"body"`       // sent in place of an error in the API's format
	RetryAfter int    `yaml:"retryAfter"` // seconds for the header Retry-After; 0: no header
}

// Reasons for the end of an answer.
const (
	finishStop   = "stop"   // the answer is complete
	finishLength = "length" // the limit of output tokens was reached
	finishTool   = "tool"   // the answer ends with calls of tools
	finishFilter = "filter" // a filter of the provider has ended the answer
)

// parseScript parses and validates a script. It reports all errors, joined.
func parseScript(data []byte) (*script, error) {
	if len(data) > maxScript {
		return nil, caisson.Errorf(caisson.Invalid, "a script has at most %s", caisson.Size(maxScript))
	}
	s := &script{Chunk: defaultChunk, Dimensions: defaultDimensions}
	if err := strictyaml.Decode(data, s); err != nil {
		return nil, err
	}
	c := checker{}
	if len(s.Turns) > maxTurns {
		c.addError("turns", "there are %d; a script has at most %d", len(s.Turns), maxTurns)
		return nil, errors.Join(c.errs...)
	}
	if len(s.Turns) == 0 && s.Fallback == nil {
		c.addError("turns", "there are none, and no fallback; give at least one answer")
	}
	for i, m := range s.Models {
		if m == "" || len(m) > 256 {
			c.addError(fmt.Sprintf("models[%d]", i), "%.40q is not the name of a model", m)
		}
	}
	c.number("chunk", int64(s.Chunk), 1, maxText)
	c.number("dimensions", int64(s.Dimensions), 1, maxDimensions)
	c.delay("delay", s.Delay)
	for i := range s.Turns {
		c.turn(fmt.Sprintf("turns[%d]", i), &s.Turns[i])
	}
	if s.Fallback != nil {
		c.turn("fallback", s.Fallback)
		if s.Fallback.When != (conditions{}) || s.Fallback.Times != 0 || s.Fallback.Repeat {
			c.addError("fallback", "must not have when, once, times or repeat: it answers if no turn matches")
		}
		s.Fallback.Repeat = true
	}
	return s, errors.Join(c.errs...)
}

// checker validates a script and collects its errors.
type checker struct{ errs []error }

func (c *checker) addError(field, format string, args ...any) {
	c.errs = append(c.errs, caisson.Invalidf(field, format, args...))
}

// number checks that n is from low to high.
func (c *checker) number(field string, n, low, high int64) {
	if n < low || n > high {
		c.addError(field, "%d is not from %d to %d", n, low, high)
	}
}

// delay checks that the times in d are from 0 to maxDelay.
func (c *checker) delay(field string, d delay) {
	for _, f := range []struct {
		name string
		d    caisson.Duration
	}{{"first", d.First}, {"chunk", d.Chunk}} {
		if f.d < 0 || f.d > maxDelay {
			c.addError(field+"."+f.name, "%s is not from 0 to %s", f.d, maxDelay)
		}
	}
}

// oneOf checks that value is one of values.
func (c *checker) oneOf(field, value string, values ...string) {
	if !slices.Contains(values, value) {
		c.addError(field, "%.40q is not one of %s", value, strings.Join(values, ", "))
	}
}

// turn validates t and compiles its patterns.
func (c *checker) turn(at string, t *turn) {
	t.pattern = c.pattern(at+".when.pattern", t.When.Pattern)
	t.result = c.pattern(at+".when.resultPattern", t.When.ResultPattern)
	if t.When.API != "" {
		c.oneOf(at+".when.api", t.When.API, apiChat, apiResponses, apiMessages, apiGenerate)
	}
	c.number(at+".times", int64(t.Times), 0, maxTokens)
	if t.Once {
		if t.Times > 0 {
			c.addError(at+".once", "means the same as times: 1; set one of them")
		}
		t.Times = 1
	}
	c.answer(at, t)
	if t.Finish != "" {
		c.oneOf(at+".finish", t.Finish, finishStop, finishLength, finishTool, finishFilter)
	}
	if k := t.Tokens; k != nil {
		for _, f := range []struct {
			name string
			n    *int64
		}{{"input", k.Input}, {"output", k.Output}, {"cacheRead", &k.CacheRead}, {"cacheWrite", &k.CacheWrite}} {
			if f.n != nil {
				c.number(at+".tokens."+f.name, *f.n, 0, maxTokens)
			}
		}
	}
	if t.Delay != nil {
		c.delay(at+".delay", *t.Delay)
	}
	c.number(at+".chunk", int64(t.Chunk), 0, maxText)
	if b := t.Break; b != nil {
		c.oneOf(at+".break.how", b.How, breakCut, breakHang, breakError)
		c.number(at+".break.after", int64(b.After), 0, maxText*(maxCalls+1))
	}
	if e := t.Error; e != nil {
		if http.StatusText(e.Status) == "" && e.Status != 529 || e.Status < 400 {
			c.addError(at+".error.status", "%d is not the status of an error", e.Status)
		}
		c.number(at+".error.retryAfter", int64(e.RetryAfter), 0, 1e6)
		if e.Message != "" && e.Body != "" {
			c.addError(at+".error", "has a message, from which a body is made, and a body; set one of them")
		}
	}
}

// answer validates the text, the calls and the error of t.
func (c *checker) answer(at string, t *turn) {
	if t.Error != nil && (t.Text != "" || len(t.Calls) > 0 || t.Break != nil) {
		c.addError(at+".error", "is instead of an answer; remove text, calls and break, or the error")
	}
	if len(t.Text) > maxText {
		c.addError(at+".text", "has more than %s", caisson.Size(maxText))
	}
	if strings.Count(t.Text, "{{") > maxPlaceholders {
		c.addError(at+".text", "has more than %d placeholders", maxPlaceholders)
	}
	if len(t.Calls) > maxCalls {
		c.addError(at+".calls", "there are more than %d", maxCalls)
	}
	for i := range t.Calls {
		call, at := &t.Calls[i], fmt.Sprintf("%s.calls[%d]", at, i)
		if call.Name == "" || len(call.Name) > 128 {
			c.addError(at+".name", "%.40q is not the name of a tool", call.Name)
		}
		if call.Arguments == "" {
			call.Arguments = "{}"
		}
		var object map[string]json.RawMessage
		if len(call.Arguments) > maxText || json.Unmarshal([]byte(call.Arguments), &object) != nil || object == nil {
			c.addError(at+".arguments", `is not a JSON object in quotes, as '{"path": "/"}'`)
		}
	}
}

// pattern compiles s; it returns nil if s is "" or invalid.
func (c *checker) pattern(field, s string) *regexp.Regexp {
	if s == "" {
		return nil
	}
	if len(s) > maxPattern {
		c.addError(field, "has more than %d bytes", maxPattern)
		return nil
	}
	re, err := regexp.Compile(s)
	if err != nil {
		c.addError(field, "%s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	return re
}
