package test_test

import (
	"os"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestGuideOwnAgent tests that the first agent of docs/guides/own-agent.md works as the page says.
func TestGuideOwnAgent(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	page, err := os.ReadFile("../docs/guides/own-agent.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	agent, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("the page has no agent")
	}
	h.ok("agent", "add", h.write("count-lines.yaml", agent))
	h.ok("agent", "check", "count-lines")
	dir := h.userDir("project", map[string]string{"a.txt": "1\n2\n", "b.txt": "3\n", "c.md": "4\n"})
	r := h.succeeds("-C", dir, "count-lines", "txt")
	if got := strings.TrimSpace(r.Result.Answer); got != "3" {
		t.Errorf("the answer is %q", got)
	}
	if change := h.diff(string(r.ID))["lines.txt"]; change.Kind != caisson.ChangeAdded {
		t.Errorf("lines.txt is %+v in the diff", change)
	}
}
