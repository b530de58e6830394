package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/caisson-dev/caisson"
)

// An envelope is the JSON object with which OpenClaw reports the result of a turn. It has one of three forms: from its gateway,
// with the fields runId, status and result; from "openclaw agent --local --json", with payloads and meta; or from "openclaw agent
// exec --json", with ok and final.
type envelope struct {
	Status  string   `json:"status"`  // ok, or OpenClaw's keyword for a failure
	Summary string   `json:"summary"` // message of OpenClaw about the turn
	Result  *outcome `json:"result"`  // the outcome in the form with status; the form with payloads has it at the top level
	outcome
	OK    *bool      `json:"ok"`             // in the form with ok: whether the turn has succeeded
	Final *string    `json:"final"`          // in the form with ok: text of the answer
	Error *envError  `json:"error"`          // error of the turn; nil if there is none
	Usage *usage     `json:"usage"`          // numbers of tokens; nil if not reported here
	Turns int64      `json:"assistantTurns"` // number of model calls
	Tools *toolCount `json:"toolSummary"`    // number of tool calls; nil if not reported
}

// outcome is the part of OpenClaw's report on a turn that has the answer and information about the turn.
type outcome struct {
	Payloads []payload `json:"payloads"` // messages of the answer
	Meta     *meta     `json:"meta"`     // information about the turn; nil if not reported
}

// payload is one message of an answer.
type payload struct {
	Text    string `json:"text"`    // text of the message in the answer
	IsError bool   `json:"isError"` // Text is about a failure, and not from the model
}

// toolCount is the summary of the tool calls of a turn.
type toolCount struct {
	Calls int64 `json:"calls"` // number of tool calls
}

// envError is an error in OpenClaw's report on a turn. In JSON it is an object or a string.
type envError struct {
	Kind    string // OpenClaw's keyword for the reason; may be empty
	Message string // message of the error
}

// UnmarshalJSON decodes an error that is an object or a string.
func (e *envError) UnmarshalJSON(b []byte) error {
	if json.Unmarshal(b, &e.Message) == nil {
		return nil
	}
	var o struct {
		Kind    string `json:"kind"`
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return err
	}
	e.Kind, e.Message = o.Kind, o.Message
	if e.Kind == "" {
		e.Kind = o.Type
	}
	return nil
}

// meta is OpenClaw's information about a turn.
type meta struct {
	Aborted   bool      `json:"aborted"`                   // OpenClaw has aborted the turn
	Error     *envError `json:"error"`                     // error of the turn; nil if there is none
	Stop      string    `json:"stopReason"`                // reason for which the model's answer ended
	FinalText *string   `json:"finalAssistantVisibleText"` // text of the model's last message, as users see it
	RawText   *string   `json:"finalAssistantRawText"`     // text of the model's last message, unchanged
	Agent     struct {  // numbers of tokens and of model calls
		Usage *usage `json:"usage"`
		Turns int64  `json:"assistantTurns"`
	} `json:"agentMeta"`
}

// usage is the number of tokens of all model calls of a turn.
type usage struct {
	Input      int64 `json:"input"`
	Output     int64 `json:"output"`
	CacheRead  int64 `json:"cacheRead"`
	CacheWrite int64 `json:"cacheWrite"`
}

// errEnvelope is the error for output of OpenClaw that should report on a turn and has none of the known forms of such a report.
var errEnvelope = errors.New("OpenClaw's answer is in no form that is known")

// parseEnvelope parses OpenClaw's report on a turn. Returns errEnvelope if b is not a JSON object in one of the known forms.
func parseEnvelope(b []byte) (*envelope, error) {
	var e envelope
	if err := json.Unmarshal(b, &e); err != nil {
		return nil, fmt.Errorf("%w: %w", errEnvelope, err)
	}
	if e.Result != nil {
		e.outcome = *e.Result
	}
	if e.Meta == nil && e.OK == nil && e.Error == nil && e.Status == "" {
		return nil, errEnvelope
	}
	return &e, nil
}

// warningMark begins texts that come from OpenClaw and not from the model.
const warningMark = "⚠"

// An interpretation is what OpenClaw's report on a turn means: the answer, or the error, of the turn.
type interpretation struct {
	answer   string            // text of the answer
	warnings []string          // texts of OpenClaw about failures
	usage    *caisson.RunUsage // usage of the turn; nil if OpenClaw reports none
	err      *caisson.RunError // error of the turn; nil for success
}

// interpret returns the answer, warnings, usage and error in OpenClaw's report on a turn. A text about a failure that comes from
// OpenClaw itself is a warning, even if it is among the messages of the answer.
func (e *envelope) interpret() interpretation {
	var v interpretation
	m := e.Meta
	if m == nil {
		m = &meta{}
	}
	v.usage = e.runUsage(m)
	var answers []string
	for _, p := range e.Payloads {
		text := strings.TrimSpace(p.Text)
		switch {
		case text == "":
		case p.IsError, strings.HasPrefix(text, warningMark) && !m.isModelText(text):
			v.warnings = append(v.warnings, text)
		default:
			answers = append(answers, text)
		}
	}
	if len(answers) == 0 && e.Final != nil && strings.TrimSpace(*e.Final) != "" && len(v.warnings) == 0 {
		answers = append(answers, strings.TrimSpace(*e.Final))
	}
	v.answer = strings.Join(answers, "\n\n")
	switch {
	case e.Error != nil:
		v.err = classify(e.Error.Kind, e.Error.Message)
	case m.Error != nil:
		v.err = classify(m.Error.Kind, m.Error.Message)
	case m.Aborted:
		v.err = newError(caisson.RunAgentError, "OpenClaw aborted the turn")
	case e.OK != nil && !*e.OK, e.Status != "" && e.Status != "ok":
		v.err = classify(e.Status, firstNonEmpty(v.warnings, e.Summary, "OpenClaw reports that the turn failed"))
	case m.Stop == "error":
		v.err = classify("", firstNonEmpty(v.warnings, "the model's answer ended with an error"))
	case v.answer == "" && len(v.warnings) > 0:
		v.err = classify("", v.warnings[0])
	case v.answer == "":
		v.err = newError(caisson.RunAgentError, "OpenClaw ended its turn without an answer")
	}
	return v
}

// isModelText reports whether a text certainly comes from the model, and not from OpenClaw itself.
func (m *meta) isModelText(text string) bool {
	for _, s := range []*string{m.FinalText, m.RawText} {
		if s != nil && strings.Contains(*s, text) {
			return m.Stop != "error" && m.Error == nil
		}
	}
	return false
}

// runUsage returns the usage of the turn from m, or else from e, in the form of a run's usage; nil if neither contains it.
func (e *envelope) runUsage(m *meta) *caisson.RunUsage {
	u, calls := m.Agent.Usage, m.Agent.Turns
	if u == nil {
		u, calls = e.Usage, e.Turns
	}
	if u == nil {
		return nil
	}
	natural := func(n int64) int64 { return max(n, 0) }
	return &caisson.RunUsage{Calls: natural(calls), Tokens: caisson.TokenCount{
		Input: natural(u.Input), Output: natural(u.Output), CacheRead: natural(u.CacheRead), CacheWrite: natural(u.CacheWrite),
	}}
}

// firstNonEmpty returns the first text in list and then others that is not empty.
func firstNonEmpty(list []string, others ...string) string {
	for _, s := range append(append([]string(nil), list...), others...) {
		if strings.TrimSpace(s) != "" {
			return s
		}
	}
	return ""
}

// classify returns the error of a run for a failure that OpenClaw reports. The code depends on kind, OpenClaw's keyword for the
// reason, and on words in the message.
func classify(kind, message string) *caisson.RunError {
	message = strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(message), warningMark), "\ufe0f"))
	if message == "" {
		message = "OpenClaw reports that the turn failed, without a reason"
	}
	code := caisson.RunAgentError
	switch text := strings.ToLower(kind + " " + message); {
	case strings.Contains(text, "billing"), strings.Contains(text, "insufficient balance"):
		code = caisson.RunNoCredits
	case strings.Contains(text, "rate_limit"), strings.Contains(text, "rate limit"):
		code = caisson.RunRateLimit
	case kind == "timeout":
		code = caisson.RunTimeout
	}
	return newError(code, message)
}
