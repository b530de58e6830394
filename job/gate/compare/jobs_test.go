package compare

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestReadComparisonIsBounded(t *testing.T) {
	for _, tt := range []struct {
		data  string
		count int
	}{{"", 1}, {"{}", 2}, {`{"other":1}`, 1}, {"{}", -1}, {"{}", 1 << 30}, {"[]", 1},
		// A loop over the parents of such a path would not terminate.
		{`{"steps":[{"path":"/a"}]}`, 1}, {`{"steps":[{"path":""}]}`, 1}, {`{"steps":[{"path":"."}]}`, 1}, {`{"steps":[{"path":"../a"}]}`, 1},
		{`{"steps":[{"path":"a//b"}]}`, 1}, {`{"steps":[{"path":"a"},{"path":"b"},{"path":"c"}]}`, 1}} {
		if _, err := readComparison(strings.NewReader(tt.data), compareReply{Count: tt.count}); err == nil || caisson.KindOf(err) != caisson.Internal {
			t.Errorf("%q: %v", tt.data, err)
		}
	}
}
