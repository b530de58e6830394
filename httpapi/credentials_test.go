package httpapi_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi"
)

const secretValue = "PLAINTEXT-MARKER-0123456789"

// brokenCredentials fails in the ways that end in the log, with the value in what it fails with as far as types allow.
type brokenCredentials struct{ caisson.Credentials }

func (brokenCredentials) SetCredential(_ context.Context, name string, value caisson.Secret) (*caisson.Credential, error) {
	if name == "PANIC" {
		panic(value)
	}
	return nil, fmt.Errorf("store %s: %v %d", name, value, struct{ v caisson.Secret }{value})
}

// recordedAnswers remembers everything that was to be stored for an Idempotency-Key.
type recordedAnswers struct {
	caisson.AnswerStore
	mu   sync.Mutex
	seen []string
}

func (a *recordedAnswers) Begin(ctx context.Context, account, key string, fingerprint [32]byte, now time.Time) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, account+key+hex.EncodeToString(fingerprint[:]))
	return nil, errors.New("not to be asked")
}

// TestPromise2ValuesStayInBodies sends values in every way, right and wrong. They must not come back, be logged, or be
// remembered for an Idempotency-Key.
func TestPromise2ValuesStayInBodies(t *testing.T) {
	answers := &recordedAnswers{}
	s := serve(t, func(c *httpapi.Config) { c.Answers = answers })
	broken := serve(t, func(c *httpapi.Config) { c.Credentials = brokenCredentials{c.Credentials} })
	quoted := `"` + secretValue + `"`
	for name, tt := range map[string]struct {
		on           *server
		method, path string
		body         string
		header       map[string]string
		status       int
	}{
		"set":                 {s, "PUT", "KEY", `{"value":` + quoted + `}`, map[string]string{"Idempotency-Key": "k"}, 201},
		"set, with the type":  {s, "PUT", "KEY2", `{"value":` + quoted + `}`, map[string]string{"Content-Type": "application/json; charset=utf-8"}, 201},
		"rotate nothing":      {s, "POST", "NONE/rotate", `{"value":` + quoted + `}`, map[string]string{"Idempotency-Key": "k"}, 404},
		"another field":       {s, "PUT", "B", `{"value":` + quoted + `,"other":` + quoted + `}`, nil, 400},
		"field misspelt":      {s, "PUT", "B", `{"secret":` + quoted + `}`, nil, 400},
		"field missing":       {s, "PUT", "B", `{}`, nil, 400},
		"a list":              {s, "PUT", "B", `{"value":[` + quoted + `]}`, nil, 400},
		"an object":           {s, "PUT", "B", `{"value":{"v":` + quoted + `}}`, nil, 400},
		"a number":            {s, "PUT", "B", `{"value":8765432198765432}`, nil, 400},
		"null":                {s, "PUT", "B", `{"value":null}`, nil, 400},
		"empty":               {s, "PUT", "B", `{"value":""}`, nil, 400},
		"bare":                {s, "PUT", "B", quoted, nil, 400},
		"no JSON":             {s, "PUT", "B", secretValue, nil, 400},
		"JSON cut off":        {s, "PUT", "B", `{"value":"` + secretValue, nil, 400},
		"JSON with more":      {s, "PUT", "B", `{"value":` + quoted + `}` + secretValue, nil, 400},
		"NUL":                 {s, "PUT", "B", `{"value":"` + secretValue + `\u0000"}`, nil, 400},
		"not UTF-8":           {s, "PUT", "B", `{"value":"` + secretValue + "\xff" + `"}`, nil, 400},
		"too long":            {s, "PUT", "B", `{"value":"` + secretValue + strings.Repeat("x", 64<<10) + `"}`, nil, 400},
		"far too long":        {s, "PUT", "B", `{"value":"` + secretValue + strings.Repeat("x", 1<<20) + `"}`, nil, 400},
		"another type":        {s, "PUT", "B", secretValue, map[string]string{"Content-Type": "text/plain"}, 400},
		"a form":              {s, "PUT", "B", "value=" + secretValue, map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 400},
		"a bad name":          {s, "PUT", "9", `{"value":` + quoted + `}`, nil, 400},
		"a path that is none": {s, "PUT", "B/x", `{"value":` + quoted + `}`, nil, 404},
		"another method":      {s, "PATCH", "B", `{"value":` + quoted + `}`, nil, 404},
		"in the query":        {s, "PUT", "B?value=" + secretValue, `{"value":"x"}`, nil, 400},
		"a core that fails":   {broken, "PUT", "KEY", `{"value":` + quoted + `}`, nil, 500},
		"a core that panics":  {broken, "PUT", "PANIC", `{"value":` + quoted + `}`, nil, 500},
	} {
		status, _, answer := tt.on.raw(t, true, tt.method, "/api/v1/credentials/"+tt.path, tt.body, tt.header)
		if status != tt.status {
			t.Errorf("%s: %d, want %d: %s", name, status, tt.status, answer)
		}
		if strings.Contains(answer, "MARKER") || strings.Contains(answer, "8765432198765") {
			t.Errorf("%s: the answer has the value: %s", name, answer)
		}
	}
	status, _, list := s.raw(t, true, http.MethodGet, "/api/v1/credentials", "", nil)
	if status != 200 || strings.Contains(list, "MARKER") || strings.Contains(list, "value") || strings.Count(list, `"name"`) != 2 {
		t.Errorf("listed %d %s", status, list)
	}
	if v, err := s.world.Secret(t.Context(), "local", "KEY"); err != nil || v.Reveal() != secretValue {
		t.Errorf("what was sent is not what is kept: %v", err)
	}
	for _, s := range []*server{s, broken} {
		if log := s.log.String(); strings.Contains(log, "MARKER") || strings.Contains(log, "8765432198765") {
			t.Errorf("the log has a value: %s", log)
		}
	}
	if !strings.Contains(broken.log.String(), "store KEY: [redacted]") {
		t.Errorf("the failure was not logged: %s", broken.log.String())
	}
	if len(answers.seen) > 0 {
		t.Errorf("remembered for an Idempotency-Key: %v", answers.seen)
	}
}

// TestCredentialsOfAccounts: over TCP a token manages the credentials of its account, and cannot verify the record.
func TestCredentialsOfAccounts(t *testing.T) {
	s := serve(t)
	alice, bob := s.remote(t, "alice"), s.remote(t, "bob")
	if _, err := alice.SetCredential(t.Context(), "KEY", caisson.NewSecret("x")); err != nil {
		t.Fatal(err)
	}
	if list, err := bob.ListCredentials(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	if err := bob.RemoveCredential(t.Context(), "KEY"); caisson.KindOf(err) != caisson.NotFound {
		t.Error(err)
	}
	if _, err := bob.RotateCredential(t.Context(), "KEY", caisson.NewSecret("y")); caisson.KindOf(err) != caisson.NotFound {
		t.Error(err)
	}
	if _, err := alice.VerifyAudit(t.Context(), ""); caisson.KindOf(err) != caisson.Denied {
		t.Error(err)
	}
	if _, err := s.local(t, "alice").VerifyAudit(t.Context(), ""); err != nil {
		t.Error(err)
	}
}
