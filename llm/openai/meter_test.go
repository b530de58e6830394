package openai_test

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/llm/dialect"
	"github.com/caisson-dev/caisson/llm/openai"
)

// TestDeepAnswer: what nests deep takes no longer to meter than other text; it took hours.
func TestDeepAnswer(t *testing.T) {
	for _, api := range []string{"chat", "responses"} {
		deep := strings.Repeat("[", 2<<20) + strings.Repeat("]", 2<<20)
		event := `{"choices":[{"delta":` + deep + `}],"delta":` + deep + `}`
		m := openai.New().Meter(dialect.Endpoint{API: api}, true)
		m.Write([]byte("data: " + event[:7<<20] + "\n\n"))
		m.Write([]byte("data: " + strings.Replace(event, deep, `"ab"`, 2) + "\n\n"))
		if m.Seen() < 2 {
			t.Errorf("%s: %d bytes seen", api, m.Seen())
		}
	}
}
