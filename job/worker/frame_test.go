package worker

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func FuzzReadFrames(f *testing.F) {
	for _, s := range []string{`{"result":{"A":"x"}}` + "\n", `{"progress":1}` + "\n" + `{"error":{"kind":"denied","message":"\u001b[1m"}}` + "\n",
		`{"error":{}}` + "\n", "{}\n", "", "\n", `{"result":null}` + "\n", `{"result":{"A":1}} {}` + "\n", `{"error":{"kind":"conflict"}}` + "\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var reply struct{ A string }
		err := readFrames(strings.NewReader(s), func(json.RawMessage) {}, &reply)
		if err == nil && !strings.Contains(s, "\n") {
			t.Errorf("%q was taken for an answer", s)
		}
		if strings.ContainsAny(caisson.MessageOf(err), "\x1b\n\r") {
			t.Errorf("%q became the message %q", s, caisson.MessageOf(err))
		}
	})
}
