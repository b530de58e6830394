package forge

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/worker"
)

// taken is a compromised job: it answers with any JSON.
type taken string

func (a taken) Run(_ context.Context, _ worker.Request, reply any) error {
	return json.Unmarshal([]byte(a), reply)
}

// TestJobsAreNotBelieved: a job that parsed a forge's answer may be compromised, so its reply is checked.
func TestJobsAreNotBelieved(t *testing.T) {
	s := Server{Forge: caisson.ForgeGitHub, API: "https://api.github.com", Project: "a/b", Web: "https://github.com/a/b", Token: caisson.NewSecret(testToken)}
	for answer, kind := range map[string]caisson.Kind{
		`{}`:                                           caisson.Internal,
		`{"Pull":{"Number":0,"State":"open"}}`:         caisson.Internal,
		`{"Pull":{"Number":-1,"State":"open"}}`:        caisson.Internal,
		`{"Pull":{"Number":1,"State":"\u001b"}}`:       caisson.Internal,
		`{"Failure":{}}`:                               caisson.Internal,
		`{"Failure":{"Kind":"made-up","Message":"x"}}`: caisson.Internal,
		`{"Failure":{"Kind":"unavailable","Message":"a\u001b\n` + testToken + `"}}`:   caisson.Unavailable,
		`{"Failure":{"Kind":"denied","Message":"` + strings.Repeat("x", 9999) + `"}}`: caisson.Denied,
		`{"Failure":{"Kind":"unavailable","Wait":9000000000000000000}}`:               caisson.Unavailable,
	} {
		p, err := NewTool(taken(answer)).Pull(t.Context(), s, somePull)
		if p != nil || caisson.KindOf(err) != kind {
			t.Errorf("%.80s: %+v, %v", answer, p, err)
			continue
		}
		if m := err.Error(); len(m) > 2*maxMessage+50 || strings.ContainsAny(m, "\x1b\n") || strings.Contains(m, testToken) || RetryAfter(err) > maxRetryDelay {
			t.Errorf("%.80s: %q", answer, m)
		}
	}
	p, err := NewTool(taken(`{"Pull":{"Number":7,"State":"open","URL":"https://evil.org/"}}`)).Pull(t.Context(), s, somePull)
	if err != nil || p.URL != "https://github.com/a/b/pull/7" {
		t.Errorf("%+v, %v", p, err)
	}

	app, _ := ParseApp(caisson.NewSecret(`{"appId":1,"privateKey":"` + testToken + `"}`))
	later := time.Now().Add(1000 * time.Hour).Format(time.RFC3339)
	for answer, ok := range map[string]bool{
		`{}`: false, `{"Token":"x"}`: false, `{"Token":"x","Expires":"2001-01-01T00:00:00Z"}`: false, `{"Token":"a b","Expires":"` + later + `"}`: false,
		`{"Token":"a\r\nb","Expires":"` + later + `"}`: false, `{"Token":"` + strings.Repeat("x", maxToken+1) + `","Expires":"` + later + `"}`: false,
		`{"Failure":{"Kind":"denied","Message":"` + testToken + `"}}`: false, `{"Token":"x","Expires":"` + later + `"}`: true,
	} {
		token, expires, err := NewTool(taken(answer)).Token(t.Context(), app, s)
		if (err == nil) != ok || token.IsZero() == ok || time.Until(expires) > 25*time.Hour || err != nil && strings.Contains(err.Error(), testToken) {
			t.Errorf("%.80s: %v, %v", answer, expires, err)
		}
	}
}

// TestToolAsksFirst: invalid arguments are rejected before a job is started.
func TestToolAsksFirst(t *testing.T) {
	good := Server{Forge: caisson.ForgeGitHub, API: "https://api.github.com", Project: "a/b", Token: caisson.NewSecret(testToken)}
	for name, change := range map[string]func(*Server){
		"no forge": func(s *Server) { s.Forge = caisson.ForgeNone }, "unknown": func(s *Server) { s.Forge = "x" }, "no api": func(s *Server) { s.API = "" },
		"query": func(s *Server) { s.API += "?x" }, "project": func(s *Server) { s.Project = "a/../b" }, "escape": func(s *Server) { s.Project = "a/b%2f" },
		"short": func(s *Server) { s.Project = "b" }, "roots": func(s *Server) { s.Roots = strings.Repeat("x", maxRoots+1) }, "token": func(s *Server) { s.Token = caisson.Secret{} },
	} {
		s := good
		change(&s)
		_, err := NewTool(nil).Pull(t.Context(), s, somePull)
		if k := caisson.KindOf(err); k != caisson.Invalid && k != caisson.Unauthed {
			t.Errorf("%s: %v", name, err)
		}
	}
}
