package driver

import (
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name, in, answer, code string
		warnings               int
	}{
		{"gateway", `{"runId":"r","status":"ok","summary":"completed","result":{"payloads":[{"text":"hi","mediaUrl":null}],"meta":{"agentMeta":{"usage":{"input":3,"output":2},"assistantTurns":1}}}}`, "hi", "", 0},
		{"local", `{"payloads":[{"text":"hi"}],"meta":{"durationMs":1,"stopReason":"stop"}}`, "hi", "", 0},
		{"exec", `{"ok":true,"status":"ok","final":"hi","payloads":[],"usage":{"input":1,"output":1}}`, "hi", "", 0},
		{"two parts", `{"payloads":[{"text":"a"},{"text":"b"}],"meta":{}}`, "a\n\nb", "", 0},
		{"a warning after", `{"payloads":[{"text":"done"},{"text":"⚠️ 📝 Edit failed"}],"meta":{}}`, "done", "", 1},
		{"the model's own sign", `{"payloads":[{"text":"⚠️ careful"}],"meta":{"finalAssistantVisibleText":"⚠️ careful","stopReason":"stop"}}`, "⚠️ careful", "", 0},
		{"empty", `{"payloads":[],"meta":{}}`, "", caisson.RunAgentError, 0},
		{"blank", `{"payloads":[{"text":" \n"}],"meta":{}}`, "", caisson.RunAgentError, 0},
		{"meta.error", `{"payloads":[{"text":"x"}],"meta":{"error":{"kind":"context_overflow","message":"too long"}}}`, "x", caisson.RunAgentError, 0},
		{"aborted", `{"payloads":[{"text":"x"}],"meta":{"aborted":true}}`, "x", caisson.RunAgentError, 0},
		{"error as text", `{"payloads":[{"text":"⚠️ caisson (m1) returned a billing error"}],"meta":{"stopReason":"error"}}`, "", caisson.RunNoCredits, 1},
		{"error as text, alone", `{"payloads":[{"text":"⚠️ Something failed"}],"meta":{}}`, "", caisson.RunAgentError, 1},
		{"marked as error", `{"payloads":[{"text":"HTTP 429 rate limit","isError":true}],"meta":{}}`, "", caisson.RunRateLimit, 1},
		{"failed sign said by an error", `{"payloads":[{"text":"⚠️ x"}],"meta":{"finalAssistantVisibleText":"⚠️ x","stopReason":"error"}}`, "", caisson.RunAgentError, 1},
		{"cli error", `{"ok":false,"error":{"type":"cli_error","message":"no such agent"}}`, "", caisson.RunAgentError, 0},
		{"exec timeout", `{"ok":false,"status":"timeout","final":"","payloads":[],"error":{"message":"late","kind":"timeout"}}`, "", caisson.RunTimeout, 0},
		{"status", `{"runId":"r","status":"error","summary":"broken","result":{"payloads":[],"meta":{}}}`, "", caisson.RunAgentError, 0},
	} {
		e, err := parseEnvelope(findEnvelope([]byte(c.in)))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		v := e.interpret()
		code := ""
		if v.err != nil {
			code = v.err.Code
		}
		if v.answer != c.answer || code != c.code || len(v.warnings) != c.warnings {
			t.Errorf("%s: answer %q, warnings %q, %v", c.name, v.answer, v.warnings, v.err)
		}
	}
	for _, in := range []string{"", "x", "[]", "3", "null", `{"payloads":3}`, `{"a":1}`, `{"payloads":[{"text":"x"}]}`, `{"ok":true} x`} {
		if e, err := parseEnvelope(findEnvelope([]byte(in))); err == nil {
			t.Errorf("%q is taken as %+v", in, e)
		}
	}
	if b := findEnvelope([]byte("starting\n{not}\n{\"ok\":true,\n \"final\":\"x\"}\n")); string(b) != "{\"ok\":true,\n \"final\":\"x\"}" {
		t.Errorf("found %q", b)
	}
}

func FuzzJudge(f *testing.F) {
	f.Add([]byte(`{"payloads":[{"text":"⚠️ x"}],"meta":{"error":"x"}}`))
	f.Add([]byte("x\n{\"ok\":false,\"error\":{\"message\":1}}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parseEnvelope(findEnvelope(b))
		if err != nil {
			return
		}
		if v := e.interpret(); v.err == nil && v.answer == "" {
			t.Error("no answer, and no error")
		}
	})
}
