package forge

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/forge/forgetest"
)

func TestParseApp(t *testing.T) {
	for in, want := range map[string]App{
		`{"appId":12,"privateKey":"k"}`:                             {id: "12"},
		` {"appId":"Iv1.abc","privateKey":"k","installationId":7} `: {id: "Iv1.abc", installation: 7},
		`{"appId":"12","privateKey":"k","installationId":"7"}`:      {id: "12", installation: 7},
		`{"appId":"12","privateKey":"k","installationId":null}`:     {id: "12"},
		"{\"appId\":1,\n\"privateKey\":\"k\"}\n":                    {id: "1"},
	} {
		app, ok := ParseApp(caisson.NewSecret(in))
		if key := app.key.Reveal(); !ok || key != "k" {
			t.Errorf("%s: %v, %q", in, ok, key)
		}
		if app.id != want.id || app.installation != want.installation {
			t.Errorf("%s: %q %d", in, app.id, app.installation)
		}
	}
	for _, in := range []string{
		"", "ghp_x", "user:password", "{", "{}", "[]", "null", `{"appId":12}`, `{"privateKey":"k"}`, `{"appId":-1,"privateKey":"k"}`, `{"appId":0,"privateKey":"k"}`,
		`{"appId":1.5,"privateKey":"k"}`, `{"appId":"a b","privateKey":"k"}`, `{"appId":"../x","privateKey":"k"}`, `{"appId":"a/b","privateKey":"k"}`,
		`{"appId":1,"privateKey":"k","x":1}`, `{"appId":1,"privateKey":"k"}{}`, `{"appId":1,"privateKey":"k"} x`, `{"appId":1,"privateKey":"k","installationId":0}`,
		`{"appId":1,"privateKey":"k","installationId":"x"}`, `{"appId":1,"privateKey":"k","installationId":true}`, `{"appId":1,"privateKey":"k","installationId":""}`,
		`{"appId":null,"privateKey":"k"}`, `{"appId":1,"privateKey":"` + strings.Repeat("k", maxApp) + `"}`,
	} {
		if app, ok := ParseApp(caisson.NewSecret(in)); ok || app.id != "" || !app.key.IsZero() {
			t.Errorf("%.80s is an App", in)
		}
	}
}

func TestToken(t *testing.T) {
	b := newBench(t, forgetest.Options{Kind: caisson.ForgeGitHub, GitHubApp: true})
	b.Branch("caisson/1")
	for _, installation := range []bool{true, false} {
		app, ok := ParseApp(b.AppCredential(installation))
		if !ok {
			t.Fatal("not recognised")
		}
		token, expires, err := b.tool.Token(t.Context(), app, b.server)
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(expires); left < 50*time.Minute || left > time.Hour {
			t.Errorf("it expires in %v", left)
		}
		b.server.Token = token
		if p := b.mustPull(nil); p.Number != 1 {
			t.Errorf("%+v", p)
		}
	}
	b.server.Forge = caisson.ForgeGitea
	app, _ := ParseApp(b.AppCredential(true))
	_, _, err := b.tool.Token(t.Context(), app, b.server)
	wantKind(t, err, caisson.Invalid, "GitHub")
}

func TestTokenRefused(t *testing.T) {
	b := newBench(t, forgetest.Options{Kind: caisson.ForgeGitHub, GitHubApp: true})
	text := b.AppCredential(false).Reveal()
	var fields map[string]any
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		t.Fatal(err)
	}
	app := func(change func(map[string]any)) App {
		t.Helper()
		copied := map[string]any{}
		for k, v := range fields {
			copied[k] = v
		}
		change(copied)
		text, err := json.Marshal(copied)
		if err != nil {
			t.Fatal(err)
		}
		a, ok := ParseApp(caisson.NewSecret(string(text)))
		if !ok {
			t.Fatal("not recognised")
		}
		return a
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	other := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	for _, tt := range []struct {
		name   string
		change func(map[string]any)
		kind   caisson.Kind
		word   string
	}{
		{"no key", func(m map[string]any) { m["privateKey"] = "s3cret-nonsense" }, caisson.Unauthed, "PEM"},
		{"another kind of key", func(m map[string]any) { m["privateKey"] = other }, caisson.Unauthed, "RSA"},
		{"another app", func(m map[string]any) { m["appId"] = 1 }, caisson.Unauthed, "Integration not found"},
		{"another installation", func(m map[string]any) { m["installationId"] = 1 }, caisson.Unauthed, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := app(tt.change)
			token, _, err := b.tool.Token(t.Context(), a, b.server)
			wantKind(t, err, tt.kind, tt.word)
			if !token.IsZero() || strings.Contains(err.Error(), a.key.Reveal()) || strings.Contains(err.Error(), "eyJ") {
				t.Errorf("%v", err)
			}
		})
	}
	b.server.Project = "acme/other"
	_, _, err = b.tool.Token(t.Context(), app(func(map[string]any) {}), b.server)
	wantKind(t, err, caisson.Unauthed)
}

// TestTokenNotInstalled: the App exists, but is not installed for this repository.
func TestTokenNotInstalled(t *testing.T) {
	with := newBench(t, forgetest.Options{Kind: caisson.ForgeGitHub, GitHubApp: true})
	without := newBench(t, forgetest.Options{Kind: caisson.ForgeGitHub})
	app, _ := ParseApp(with.AppCredential(false))
	_, _, err := without.tool.Token(t.Context(), app, without.server)
	wantKind(t, err, caisson.NotFound, "install it")
}
