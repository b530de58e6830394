package forgetest

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// appID and installationID are the ids of the App and of its installation for the repository.
const appID, installationID = 4711, 81

// app is a GitHub App; the zero value means that there is none.
type app struct {
	key *rsa.PrivateKey // nil if there is no App
}

// newApp returns an app with a new key.
func newApp(t testing.TB) app {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return app{key}
}

// AppCredential returns the App's credential in the form in which users of Caisson write it, with or without the installation's
// ID.
func (f *Forge) AppCredential(installation bool) caisson.Secret {
	f.t.Helper()
	if f.app.key == nil {
		f.t.Fatal("forgetest: there is no App without Options.GitHubApp")
	}
	key := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(f.app.key)})
	in := object{"appId": appID, "privateKey": string(key)}
	if installation {
		in["installationId"] = installationID
	}
	text, err := json.Marshal(in)
	if err != nil {
		f.t.Fatal(err)
	}
	return caisson.NewSecret(string(text))
}

// serveApp answers the requests that an App makes with a JWT, which it has signed itself; it returns false for other requests.
func (f gitHubAPI) serveApp(w http.ResponseWriter, r *http.Request, path, user, token string) bool {
	find := path == "/repos/"+f.project()+"/installation" && r.Method == http.MethodGet
	mint := path == fmt.Sprintf("/app/installations/%d/access_tokens", installationID) && r.Method == http.MethodPost
	if !find && !mint {
		return false
	}
	if f.app.key == nil {
		reply(w, http.StatusNotFound, object{"message": "Not Found"})
		return true
	}
	if why := f.app.checkToken(user, token, time.Now()); why != "" {
		reply(w, http.StatusUnauthorized, object{"message": why, "documentation_url": "https://docs.github.com/rest"})
		return true
	}
	if find {
		reply(w, http.StatusOK, object{"id": installationID, "app_id": appID, "target_type": "Organization", "repository_selection": "selected"})
		return true
	}
	f.mint(w, r)
	return true
}

// mint answers the request of the App for a token of one repository.
func (f gitHubAPI) mint(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Repositories []string
		Permissions  map[string]string
	}
	if !input(r, &in) {
		reply(w, http.StatusBadRequest, object{"message": "Problems parsing JSON"})
		return
	}
	granted := object{"contents": "write", "pull_requests": "write", "metadata": "read"}
	for name, level := range in.Permissions {
		if granted[name] != level {
			reply(w, http.StatusUnprocessableEntity, object{"message": "The permissions requested are not granted to this installation."})
			return
		}
	}
	if !slices.Equal(in.Repositories, []string{f.o.Repo}) {
		reply(w, http.StatusUnprocessableEntity, object{"message": "There is at least one repository that does not exist or is not accessible to the parent installation."})
		return
	}
	token := "ghs_" + rand.Text()
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	f.mu.Lock()
	f.minted[token] = expires
	f.mu.Unlock()
	reply(w, http.StatusCreated, object{"token": token, "expires_at": expires.Format(time.RFC3339), "permissions": granted, "repository_selection": "selected"})
}

// checkToken returns the error message for a token that an App has signed; "" if the token is valid.
func (a app) checkToken(user, token string, now time.Time) string {
	const undecodable = "A JSON web token could not be decoded"
	parts := strings.Split(token, ".")
	if user != "Bearer" || len(parts) != 3 {
		return undecodable
	}
	raw := make([][]byte, 3)
	for i := range parts {
		var err error
		if raw[i], err = base64.RawURLEncoding.DecodeString(parts[i]); err != nil {
			return undecodable
		}
	}
	var head struct{ Alg, Typ string }
	var claims struct {
		Iat, Exp int64
		Iss      json.RawMessage
	}
	if json.Unmarshal(raw[0], &head) != nil || json.Unmarshal(raw[1], &claims) != nil || head.Alg != "RS256" {
		return undecodable
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	switch {
	case rsa.VerifyPKCS1v15(&a.key.PublicKey, crypto.SHA256, sum[:], raw[2]) != nil:
		return undecodable
	case strings.Trim(string(claims.Iss), `"`) != fmt.Sprint(appID):
		return "Integration not found"
	case claims.Iat > now.Unix():
		return "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued"
	case claims.Exp <= now.Unix() || claims.Exp > now.Add(10*time.Minute).Unix():
		return "'Expiration time' claim ('exp') is too far in the future"
	}
	return ""
}
