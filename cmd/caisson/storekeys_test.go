package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/models"
)

// TestServedModels checks what is made of the answers of a server that the environment names, and that its key goes nowhere else.
func TestServedModels(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("another server was asked") }))
	defer other.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer sk-1" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch r.URL.Path {
		case "/v1/models":
			w.Write([]byte(`{"object":"list","data":[{"id":"qwen3","max_model_len":32768},{"id":"nomic-embed-text"},{"id":"gpt-5.4"},{"id":"qwen3"},{"id":"a\u001b[2J b"},{"id":""}]}`))
		case "/known/models":
			w.Write([]byte(`{"data":[{"id":"gpt-5.4"}]}`))
		case "/elsewhere/models":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case "/html/models":
			w.Write([]byte("<html>"))
		case "/large/models":
			w.Write([]byte(`{"data":[` + strings.Repeat(`{"id":"a"},`, 1<<20)))
		default:
			http.NotFound(w, r)
		}
	}))
	defer srv.Close()
	for _, tt := range []struct{ path, key, models, err string }{
		{"/v1", "sk-1", "qwen3 gpt-5.4", ""},
		{"/known", "sk-1", "", ""}, // only what is built in, which stays
		{"/none", "sk-1", "", ""},
		{"/v1", "sk-2", "", "refuses the key"},
		{"/elsewhere", "sk-1", "", "status 302"},
		{"/html", "sk-1", "", "no list of models"},
		{"/large", "sk-1", "", "no list of models"},
	} {
		served, err := servedModels(t.Context(), srv.URL+tt.path, caisson.NewSecret(tt.key))
		if (err == nil) != (tt.err == "") || err != nil && (!strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), tt.key)) {
			t.Errorf("%s: %v", tt.path, err)
		}
		p := caisson.Provider{Name: "openai", Kind: caisson.ProviderOpenAI, BaseURL: srv.URL + tt.path}
		var names []string
		for _, m := range ownModels(p, served, models.Builtin().Models) {
			names = append(names, m.Alias)
			if (m.Alias == "gpt-5.4") == m.Free || m.Alias == "qwen3" && m.Context != 32768 {
				t.Errorf("%+v", m)
			}
		}
		if got := strings.Join(names, " "); got != tt.models {
			t.Errorf("%s: there are %q", tt.path, got)
		}
	}
	// Elsewhere nothing is free.
	for _, m := range ownModels(caisson.Provider{Name: "openai", Kind: caisson.ProviderOpenAI, BaseURL: "https://llm.example/v1"}, []servedModel{{ID: "x"}}, nil) {
		if m.Free || m.Prices != nil {
			t.Errorf("%+v", m)
		}
	}
	if _, err := servedModels(t.Context(), "http://127.0.0.1:1/v1", caisson.Secret{}); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Error(err)
	}
}

func TestLastLines(t *testing.T) {
	for _, tt := range []struct {
		text string
		n    int
		want string
	}{{"", 3, ""}, {"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb", 1, "b"}, {"a\n", 5, "a\n"}, {"\n\n", 1, "\n"}, {"a\n", 0, ""}} {
		if got := string(lastLines([]byte(tt.text), tt.n)); got != tt.want {
			t.Errorf("%q %d: %q", tt.text, tt.n, got)
		}
	}
}
