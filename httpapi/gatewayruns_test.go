package httpapi_test

import (
	"strings"
	"testing"
)

func TestGatewayRunRequests(t *testing.T) {
	s := serve(t)
	const body = `{"models":{"models":["large"]}}`
	for name, tt := range map[string]struct {
		local                bool
		method, target, body string
		status               int
		says                 string
	}{
		"put":               {true, "PUT", "/gateway/runs/a", body, 200, `"run":"a"`},
		"for another":       {true, "PUT", "/gateway/runs/b", `{"account":"team","models":{"models":["large"]}}`, 200, `"account":"team"`},
		"without a token":   {false, "PUT", "/gateway/runs/a", body, 401, "unauthenticated"},
		"listed to nobody":  {false, "GET", "/gateway/runs", "", 401, "unauthenticated"},
		"removed by nobody": {false, "DELETE", "/gateway/runs/a", "", 401, "unauthenticated"},
		"no models":         {true, "PUT", "/gateway/runs/a", `{}`, 400, "models"},
		"unknown field":     {true, "PUT", "/gateway/runs/a", `{"models":{"models":["large"]},"sandbox":"sb-aaaaaaaaaaaaaaaa"}`, 400, "sandbox"},
		"negative attempt":  {true, "PUT", "/gateway/runs/a", `{"attempt":-1,"models":{"models":["large"]}}`, 400, "attempt"},
		"no time":           {true, "PUT", "/gateway/runs/a", `{"expiresAt":"tomorrow","models":{"models":["large"]}}`, 400, "expiresAt"},
		"long id":           {true, "PUT", "/gateway/runs/" + strings.Repeat("x", 65), body, 400, "run"},
		"nobody's":          {true, "DELETE", "/gateway/runs/none", "", 404, "not_found"},
	} {
		status, _, got := s.raw(t, tt.local, tt.method, "/api/v1"+tt.target, tt.body, nil)
		if status != tt.status || !strings.Contains(got, tt.says) {
			t.Errorf("%s: %d %.300s", name, status, got)
		}
	}
}
