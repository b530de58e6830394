package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi"
	"github.com/caisson-dev/caisson/internal/npmtest"
)

// aiSDK returns a directory with two versions of the AI SDK and chat.mjs.
func aiSDK(t *testing.T) string {
	t.Helper()
	return npmtest.Dir(t, "ai", npmtest.Files(t, "testdata/ai"))
}

// uiMessage is a message as the AI SDK has it.
type uiMessage struct {
	ID    string   `json:"id"`
	Role  string   `json:"role"`
	Parts []uiPart `json:"parts"`
}

type uiPart struct {
	Type      string          `json:"type"`
	Text      string          `json:"text,omitempty"`
	State     string          `json:"state,omitempty"`
	ToolName  string          `json:"toolName,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	Output    string          `json:"output,omitempty"`
	ErrorText string          `json:"errorText,omitempty"`
}

// TestAISDK has the real library read our streams, and takes what it sends.
func TestAISDK(t *testing.T) {
	t.Parallel()
	dir := aiSDK(t)
	s := serve(t, func(cfg *httpapi.Config) { cfg.Runs = refusing{cfg.Runs} })
	_, secret, err := s.local(t, "").CreateToken(t.Context(), "alice", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	type outcome struct {
		Message *uiMessage
		Chunks  []struct {
			Type string
			Data struct{ Phase, Label string }
		}
		Errors   []string
		Failure  string
		StateKey string
	}
	chat := func(t *testing.T, library, key string, messages ...uiMessage) (o outcome) {
		t.Helper()
		in, err := json.Marshal(map[string]any{"token": secret.Reveal(), "chat": key, "messages": messages})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "node", "chat.mjs", library, s.url)
		cmd.Dir, cmd.Stdin = dir, bytes.NewReader(in)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s", err, err.(*exec.ExitError).Stderr) //nolint:errorlint // Output returns it as it is
		}
		if err := json.Unmarshal(out, &o); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		return o
	}
	user := func(text string) uiMessage {
		return uiMessage{ID: "u", Role: "user", Parts: []uiPart{{Type: "text", Text: text}}}
	}
	for _, library := range []string{"ai", "ai5"} {
		t.Run(library, func(t *testing.T) {
			o := chat(t, library, library+":1", user("say one ; status reading; tool bash ls; tool bash !no such file; say t\u2028wo; say <2J>"))
			if o.Failure != "" || len(o.Errors) > 0 || o.Message == nil || o.StateKey != library+":1" {
				t.Fatalf("%+v", o)
			}
			got := slices.DeleteFunc(o.Message.Parts, func(p uiPart) bool { return p.Type == "step-start" })
			if len(got) != 4 || got[0].Text != "one " || got[3].Text != "t\u2028wo<2J>" || got[3].State != "done" ||
				got[1].Type != "dynamic-tool" || got[1].ToolName != "bash" || got[1].State != "output-available" || got[1].Output != "ls" ||
				string(got[1].Input) != `{"input":"ls"}` || got[2].State != "output-error" || got[2].ErrorText != "no such file" {
				t.Errorf("%+v", got)
			}
			var kinds []string
			for _, c := range o.Chunks {
				kinds = append(kinds, c.Type)
				if c.Type == "data-status" && c.Data.Label == "reading" && c.Data.Phase != "thinking" {
					t.Errorf("%+v", c)
				}
			}
			if kinds[0] != "start" || kinds[len(kinds)-1] != "finish" || !slices.Contains(kinds, "data-status") {
				t.Errorf("%v", kinds)
			}
			// The next message brings the whole conversation, tools and all.
			o.Message.ID, o.Message.Role = "a", "assistant"
			again := chat(t, library, library+":1", user("say one"), *o.Message, user("say again"))
			if again.Failure != "" || again.Message == nil || again.Message.Parts[len(again.Message.Parts)-1].Text != "again" {
				t.Errorf("%+v", again)
			}
			runs, _, err := s.local(t, "alice").ListRuns(t.Context(), caisson.RunFilter{Limit: 2})
			if err != nil || runs[0].Session != runs[1].Session {
				t.Fatal(runs, err)
			}
			full, err := s.local(t, "alice").GetRun(t.Context(), runs[0].ID)
			if err != nil || len(full.Request.History) != 2 || full.Request.History[1].Content != "one t\u2028wo<2J>" || full.Request.Prompt != "say again" {
				t.Errorf("%+v, %v", full, err)
			}
			// A failure after the agent has begun, and one before.
			o = chat(t, library, library+":2", user("say half; fail agent_error it crashed"))
			if last := o.Chunks[len(o.Chunks)-1]; last.Type != "error" || o.Message == nil || o.Message.Parts[0].Text != "half" {
				t.Errorf("%+v", o)
			}
			if o = chat(t, library, library+":3", user("refuse exhausted there are too many")); !strings.Contains(o.Failure, "there are too many") {
				t.Errorf("%+v", o)
			}
		})
	}
}
