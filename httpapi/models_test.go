package httpapi_test

import (
	"strings"
	"testing"
)

func TestModelRequests(t *testing.T) {
	t.Parallel()
	const list = `[{"model":"m","prices":{"input":1,"output":2}},{"model":"n","prices":{"input":1,"output":2}}]`
	s := serve(t)
	for name, tt := range map[string]struct {
		local                bool
		method, target, body string
		status               int
		says                 string
	}{
		"models":          {true, "GET", "/models", "", 200, `"problem":"no price is known`},
		"with a token":    {false, "GET", "/models", "", 401, "unauthenticated"},
		"no source":       {true, "POST", "/models/prices", list, 400, "source"},
		"empty source":    {true, "POST", "/models/prices?source=", list, 400, "source"},
		"imported":        {true, "POST", "/models/prices?source=s", list, 200, `{"models":2}`},
		"found":           {true, "GET", "/models/prices?match=n", "", 200, `"model":"n"`},
		"unknown query":   {true, "GET", "/models/prices?mach=n", "", 400, "mach"},
		"long match":      {true, "GET", "/models/prices?match=" + strings.Repeat("x", 257), "", 400, "match"},
		"too large":       {true, "POST", "/models/prices?source=s", strings.Repeat("x", 16<<20+1), 400, "16MiB"},
		"no such request": {true, "DELETE", "/models/prices", "", 404, "not_found"},
	} {
		if name == "found" {
			s.raw(t, true, "POST", "/api/v1/models/prices?source=s", list, nil)
		}
		status, _, body := s.raw(t, tt.local, tt.method, "/api/v1"+tt.target, tt.body, nil)
		if status != tt.status || !strings.Contains(body, tt.says) {
			t.Errorf("%s: %d %.300s", name, status, body)
		}
	}
}
