package push

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/excerpt"
	"github.com/caisson-dev/caisson/job/relay/git"
)

func FuzzPushResult(f *testing.F) {
	f.Add("To http://x\n!\tabc:refs/heads/x\t[rejected] (stale info)\nDone\n", "remote: no\x1b[31m\n")
	f.Fuzz(func(t *testing.T, out, said string) {
		r := parsePush(out, "refs/heads/x")
		text := &excerpt.Tail{Limit: git.MaxGitErrors}
		text.Write([]byte(said))
		err := r.refusalError(Request{Branch: "x"}, text)
		if msg := err.Error(); strings.ContainsAny(msg, "\n\x1b") || len(msg) > 600 {
			t.Errorf("%q", msg)
		}
	})
}
