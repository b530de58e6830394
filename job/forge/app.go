package forge

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/worker"
)

// maxApp is the maximum size of an App's credential, in bytes.
const maxApp = 32 << 10

// An App is the credential of a GitHub App. It is used to request tokens that are valid for one hour and one repository.
type App struct {
	id           string         // the App's number or client ID
	installation int64          // ID of the installation; 0 means that it is looked up by repository
	key          caisson.Secret // private key in PEM format
}

// ParseApp parses the credential of a GitHub App: a JSON object with appId (a number or a string), privateKey (PEM) and
// optionally installationId. It returns false for anything else, such as a token or a password. It does not parse the private
// key.
func ParseApp(secret caisson.Secret) (App, bool) {
	text := strings.TrimSpace(secret.Reveal())
	if len(text) > maxApp || !strings.HasPrefix(text, "{") {
		return App{}, false
	}
	var in struct {
		AppID          json.RawMessage `json:"appId"`
		PrivateKey     string          `json:"privateKey"`
		InstallationID json.RawMessage `json:"installationId"`
	}
	if worker.Unmarshal([]byte(text), &in) != nil {
		return App{}, false
	}
	id, ok := parseID(in.AppID)
	if !ok || in.PrivateKey == "" {
		return App{}, false
	}
	app := App{id: id, key: caisson.NewSecret(in.PrivateKey)}
	if s, given := parseID(in.InstallationID); given {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n <= 0 {
			return App{}, false
		}
		app.installation = n
	} else if len(in.InstallationID) > 0 && !bytes.Equal(in.InstallationID, []byte("null")) {
		return App{}, false
	}
	return app, true
}

// parseID decodes a number or a string of letters, digits, '.', '_' and '-', and returns it as a string.
func parseID(raw json.RawMessage) (string, bool) {
	var s string
	if json.Unmarshal(raw, &s) != nil || s == "" {
		var n int64
		if json.Unmarshal(raw, &n) != nil || n <= 0 || bytes.Equal(raw, []byte("null")) {
			return "", false
		}
		s = strconv.FormatInt(n, 10)
	}
	return s, len(s) <= 100 && validSegment(s)
}

// Validity of a signed request. GitHub rejects an issue time in the future and a validity of more than ten minutes; the margins
// allow for clock skew.
const (
	issuedBefore = time.Minute     // how long before now the issue time is
	validFor     = 9 * time.Minute // how long after now the request expires
)

// signJWT returns a JWT that authenticates the App, signed with its key.
func signJWT(id, key string, now time.Time) (string, error) {
	bad := caisson.Errorf(caisson.Unauthed, "the private key of the GitHub App is not an RSA key in PEM format; download a new one from GitHub")
	block, _ := pem.Decode([]byte(key))
	if block == nil {
		return "", bad
	}
	private, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return "", bad
		}
		var ok bool
		if private, ok = parsed.(*rsa.PrivateKey); !ok {
			return "", bad
		}
	}
	claims, err := json.Marshal(map[string]any{"iss": id, "iat": now.Add(-issuedBefore).Unix(), "exp": now.Add(validFor).Unix()})
	if err != nil {
		return "", err
	}
	b64 := base64.RawURLEncoding
	text := b64.EncodeToString([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + b64.EncodeToString(claims)
	sum := sha256.Sum256([]byte(text))
	sig, err := rsa.SignPKCS1v15(rand.Reader, private, crypto.SHA256, sum[:])
	if err != nil {
		return "", bad
	}
	return text + "." + b64.EncodeToString(sig), nil
}

// installationToken requests, as the App, a token that can write contents and pull requests of one repository.
func installationToken(ctx context.Context, args jobArgs, now time.Time) (string, time.Time, error) {
	c, err := newClient(args)
	if err != nil {
		return "", time.Time{}, err
	}
	jwt, err := signJWT(args.App, args.Secret, now)
	if err != nil {
		return "", time.Time{}, err
	}
	c.secrets = append(c.secrets, jwt)
	c.authorize = bearer("Bearer", jwt)
	gitHubHeaders(c)
	if args.Installation == 0 {
		if args.Installation, err = findInstallation(ctx, c, args.Project); err != nil {
			return "", time.Time{}, err
		}
	}
	_, repo, _ := strings.Cut(args.Project, "/")
	in := map[string]any{
		"repositories": []string{repo},
		"permissions":  map[string]string{"contents": "write", "pull_requests": "write"},
	}
	var out struct {
		Token   string    `json:"token"`
		Expires time.Time `json:"expires_at"`
	}
	path := "/app/installations/" + strconv.FormatInt(args.Installation, 10) + "/access_tokens"
	if err := c.call(ctx, http.MethodPost, path, nil, in, &out); err != nil {
		return "", time.Time{}, err
	}
	if !validToken(out.Token) || !out.Expires.After(now) {
		return "", time.Time{}, caisson.Errorf(caisson.Invalid, "%s returned no valid token; check the address of its API and the clock of this host", c.base.Host)
	}
	return out.Token, out.Expires, nil
}

// findInstallation returns the id of the App's installation for a project.
func findInstallation(ctx context.Context, c *client, project string) (int64, error) {
	var out struct {
		ID int64 `json:"id"`
	}
	err := c.call(ctx, http.MethodGet, "/repos/"+project+"/installation", nil, nil, &out)
	switch {
	case hasStatus(err, http.StatusNotFound):
		return 0, caisson.Wrap(err, caisson.NotFound, "the GitHub App is not installed for %s; install it there, with the rights to write contents and pull requests", project)
	case err != nil:
		return 0, err
	case out.ID <= 0:
		return 0, errInvalidAnswer()
	}
	return out.ID, nil
}
