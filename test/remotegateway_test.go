package test_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/testneed"
	"github.com/caisson-dev/caisson/wire/llm/runtoken"
)

// A remoteGateway is a host that serves the sandboxes of other hosts.
type remoteGateway struct {
	*host
	daemon    *daemon
	api, addr string // Addresses of its API and its gateway.
	roots     string // PEM file of the CA of its certificate.
	client    *http.Client
}

const remoteModel = "m"

// newRemoteGateway starts a gateway whose key of run tokens is key.
func newRemoteGateway(t *testing.T, key string) *remoteGateway {
	t.Helper()
	h := newHost(t)
	cert, key509, pool := addressCertificate(t)
	g := &remoteGateway{host: h, api: freeAddress(t), addr: freeAddress(t)}
	g.roots = h.write("ca.pem", cert)
	script := h.write("script.yaml", `turns: [{when: {last: Refuse}, repeat: true, error: {status: 401}}]
fallback: {text: "Hello from afar.", tokens: {input: 20, output: 10}}`+"\n")
	h.configure("idleExit: 10m", "listen: "+g.api, "tlsCert: "+g.roots, "tlsKey: "+h.write("key.pem", key509),
		"providers: [{name: demo, kind: scripted, script: "+script+"}]",
		"models: [{alias: "+remoteModel+", provider: demo, context: 100000, output: 100, prices: {input: 1, output: 2}}]",
		"gateway: {listen: "+g.addr+", tlsCert: "+g.roots+", tlsKey: "+h.write("key.pem", key509)+", runTokenKeys: [RUN_KEY, OTHER_KEY]}")
	g.daemon = h.serve()
	h.credential("set", "RUN_KEY", key)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	g.client = &http.Client{Transport: transport, Timeout: hang}
	return g
}

// credential sets or rotates a credential.
func (h *host) credential(verb, name, value string) {
	h.t.Helper()
	if r := h.runWith(strings.NewReader(value), "credential", verb, name, "-"); r.code != 0 {
		h.t.Fatalf("%v", r)
	}
}

// serveRemotely starts a daemon whose sandboxes are served by g, with a token of an account there.
func serveRemotely(t *testing.T, g *remoteGateway, key, token string) *host {
	t.Helper()
	h := newHost(t)
	h.configure("idleExit: 10m", "providers: [{name: afar, kind: scripted}]", "models: [{alias: "+remoteModel+", provider: afar, free: true}]", "gateway: {remoteURL: 'https://"+g.addr+"', remoteAPI: 'https://"+g.api+"', remoteCA: "+g.roots+
		", remoteToken: GATEWAY_TOKEN, runTokenKeys: [RUN_KEY]}")
	h.serve()
	h.credential("set", "RUN_KEY", key)
	h.credential("set", "GATEWAY_TOKEN", token)
	return h
}

// addressCertificate returns a certificate for 127.0.0.1 and its key as PEM, and a pool that trusts it.
func addressCertificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(cert))
	return cert, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})), pool
}

// mint signs a run token.
func mint(t *testing.T, key, run string, attempt int) string {
	t.Helper()
	tokens, err := runtoken.New(runtoken.Config{Keys: []caisson.Secret{caisson.NewSecret(key)}})
	if err != nil {
		t.Fatal(err)
	}
	token, err := tokens.Mint(run, attempt)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

const question = `{"model":"` + remoteModel + `","messages":[{"role":"user","content":"hi"}],"max_tokens":50}`

// ask calls the gateway from another machine, with tokens.
func (g *remoteGateway) ask(tokens ...string) (status int, body string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+g.addr+"/v1/chat/completions", strings.NewReader(question))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header["Content-Type"] = []string{"application/json"}
	req.Header[runtoken.Header] = tokens
	resp, err := g.client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// want calls the gateway, and fails the test unless the response has the status.
func (g *remoteGateway) want(what string, status int, tokens ...string) {
	g.t.Helper()
	if got, body := g.ask(tokens...); got != status {
		g.t.Errorf("%s: %d %.300s, want %d", what, got, body, status)
	}
}

// callAfar calls the gateway from within a sandbox.
func (h *host) callAfar(sandbox string) string {
	h.t.Helper()
	return h.sh(sandbox, `curl -sS -m 30 -H 'Authorization: Bearer x' -H 'Content-Type: application/json' -d '`+question+
		`' http://llm.caisson.internal/v1/chat/completions 2>&1 || true`)
}

const runKey, nextKey, lastKey = "run-key-0123456789abcdef0123456789", "next-key-0123456789abcdef012345678", "last-key-0123456789abcdef012345678"

// TestRemoteGateway tests that a sandbox on one host is served by the gateway of another host, which charges the right
// account.
func TestRemoteGateway(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		testneed.Skip(t, "curl", err.Error())
	}
	t.Parallel()
	g := newRemoteGateway(t, runKey)
	token := g.ok("token", "create", "a-host", "--account", "team-a")
	h := serveRemotely(t, g, runKey, token)
	id := h.ok("sandbox", "create", "--name", "a", "--model", remoteModel, "host")
	if got := h.callAfar("a"); !strings.Contains(got, "Hello from afar.") {
		t.Fatalf("the sandbox was answered %q\n%s\n%s", got, h.serveLog(), g.serveLog())
	}
	calls := shows[[]caisson.Call](g.host, "usage", "--calls", "--account", "team-a")
	if len(calls) != 1 || calls[0].Run != id || calls[0].Account != "team-a" || calls[0].Sandbox != "" || calls[0].Cost != 40_000 {
		t.Errorf("the gateway's ledger says %+v", calls)
	}
	if calls := shows[[]caisson.Call](h, "usage", "--calls", "--all"); len(calls) != 0 {
		t.Errorf("the host's ledger says %+v", calls)
	}
	runs := shows[[]caisson.GatewayRun](g.host, "gateway", "run", "ls", "--account", "team-a")
	if len(runs) != 1 || runs[0].Run != id || runs[0].Account != "team-a" {
		t.Errorf("the gateway knows %+v", runs)
	}
	if b := g.ok("budget", "ls", "-q", "--account", "team-a"); !strings.Contains(b, "run/"+id) {
		t.Errorf("budgets: %s", b)
	}

	// The wire process that serves the gateway dies, then the daemon ends: the next ones still have the run.
	kill(t, wireOf(t, g.daemon))
	poll.Until(t, settle, func() bool { return strings.Contains(h.callAfar("a"), "Hello from afar.") })
	g.daemon.end()
	if got := h.callAfar("a"); !strings.Contains(got, "cannot be reached") {
		t.Errorf("without a gateway the sandbox was answered %q", got)
	}
	h.fails(7, "model gateway", "sandbox", "create", "--name", "b", "--model", remoteModel, "host")
	g.daemon = g.serve()
	if got := h.callAfar("a"); !strings.Contains(got, "Hello from afar.") {
		t.Errorf("after a restart the sandbox was answered %q", got)
	}
	g.daemon.kill()
	g.daemon = g.serve()
	if got := h.callAfar("a"); !strings.Contains(got, "Hello from afar.") {
		t.Errorf("after a crash the sandbox was answered %q", got)
	}

	// A sandbox without a grant has no gateway, and the gateway rejects an alias that it does not have.
	h.ok("sandbox", "create", "--name", "none", "host")
	if got := h.callAfar("none"); strings.Contains(got, "Hello") {
		t.Errorf("without a grant: %q", got)
	}
	h.fails(2, "no model", "sandbox", "create", "--model", "unheard-of", "host")

	// The host gets the usage of a run, and the reason of its failure, from the gateway.
	for prompt, want := range map[string]struct {
		code, calls int
		cost        caisson.USD
		error       string
	}{"Hello.": {0, 1, 40_000, ""}, "Refuse.": {11, 1, 0, "provider: provider \"demo\" requires a credential"}} {
		var r caisson.Run
		out := h.run("run", "-o", "json", "--model", remoteModel, "caisson", prompt)
		if err := json.Unmarshal([]byte(out.stdout), &r); err != nil || r.Result == nil {
			t.Fatal(out, err)
		}
		said := ""
		if r.Result.Error != nil {
			said = r.Result.Error.Error()
		}
		if out.code != want.code || r.Result.Usage.Calls != int64(want.calls) || r.Result.Usage.Cost != want.cost || !strings.HasPrefix(said, want.error) {
			t.Errorf("%s: exit code %d, %+v, %s", prompt, out.code, r.Result.Usage, said)
		}
	}
	h.ok("sandbox", "rm", "a")
	poll.Until(t, settle, func() bool { return g.ok("gateway", "run", "ls", "-q", "--account", "team-a") == "" })
	g.want("of a sandbox that is gone", http.StatusForbidden, mint(t, runKey, id, 0))
	if b := g.ok("budget", "ls", "-q", "--account", "team-a"); strings.Contains(b, "run/") {
		t.Errorf("budgets: %s", b)
	}
}

// TestRemoteGatewayRefuses tests that requests without a token of a registered run are rejected.
func TestRemoteGatewayRefuses(t *testing.T) {
	t.Parallel()
	g := newRemoteGateway(t, runKey)
	put := func(run, account string, args ...string) {
		t.Helper()
		g.ok(append([]string{"gateway", "run", "put", run, "--model", remoteModel, "--account", account}, args...)...)
	}
	g.ok("token", "create", "-q", "a-host", "--account", "team-a") // makes the account
	secret := g.ok("token", "create", "b-host", "--account", "team-b")
	put("run-a", "team-a")
	put("run-b", "team-b", "--attempt", "2")
	good := mint(t, runKey, "run-a", 0)
	g.want("a valid token", 200, good)
	for what, tokens := range map[string][]string{
		"no token": nil, "two tokens": {good, good}, "another key's": {mint(t, nextKey, "run-a", 0)}, "another run's signature": {"run-b|2" + good[7:]},
		"cut": {good[:len(good)-1]}, "nonsense": {"x"},
	} {
		g.want(what, http.StatusUnauthorized, tokens...)
	}
	g.want("an unknown run", http.StatusForbidden, mint(t, runKey, "run-c", 0))
	g.want("an attempt that is over", http.StatusForbidden, mint(t, runKey, "run-b", 1))
	g.want("the attempt that is under way", 200, mint(t, runKey, "run-b", 2))
	put("run-b", "team-b", "--attempt", "3")
	g.want("the attempt before", http.StatusForbidden, mint(t, runKey, "run-b", 2))

	// A run belongs to one account, and the holder of a token cannot access another account's runs.
	g.fails(4, "another account", "gateway", "run", "put", "run-a", "--model", remoteModel, "--account", "team-b")
	g.fails(3, "no run", "gateway", "run", "rm", "run-a", "--account", "team-b")
	api := func(method, path, body string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "https://"+g.api+"/api/v1/gateway/runs"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+secret)
		req.Header.Set("Content-Type", "application/json")
		resp, err := g.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	const grant = `"models":{"models":["` + remoteModel + `"]}`
	for _, c := range []struct {
		method, path, body string
		want               int
	}{
		{"PUT", "/run-a", "{" + grant + "}", 409},
		{"PUT", "/run-x", `{"account":"team-a",` + grant + "}", 403},
		{"DELETE", "/run-a", "", 404},
		{"PUT", "/run-x", "{" + grant + "}", 200},
		{"DELETE", "/run-x", "", 204},
		{"PUT", "/run%7Cx", "{" + grant + "}", 400},
		{"PUT", "/run-x", `{"models":{"models":["` + remoteModel + `"],"record":true}}`, 400},
		{"PUT", "/run-x", `{"expiresAt":"2020-01-01T00:00:00Z",` + grant + "}", 400},
		{"PUT", "/run-x", `{"models":{"models":["unheard-of"]}}`, 400},
	} {
		if got := api(c.method, c.path, c.body); got != c.want {
			t.Errorf("%s %s %s: %d, want %d", c.method, c.path, c.body, got, c.want)
		}
	}
	g.want("after all of that", 200, good)

	// A run ends by expiry or removal; a removed run belongs to its account for some time.
	put("short", "team-a", "--ttl", "1s")
	short := mint(t, runKey, "short", 0)
	poll.Until(t, settle, func() bool { status, _ := g.ask(short); return status == http.StatusForbidden })
	g.ok("gateway", "run", "rm", "run-a", "--account", "team-a")
	g.want("a run that was removed", http.StatusForbidden, good)
	g.fails(4, "another account", "gateway", "run", "put", "run-a", "--model", remoteModel, "--account", "team-b")

	// Budgets: the usage of a run is limited, and each account has only its own calls.
	put("poor", "team-a", "--calls", "1")
	g.want("the first call", 200, mint(t, runKey, "poor", 0))
	if status, body := g.ask(mint(t, runKey, "poor", 0)); status < 400 || !strings.Contains(body, "run poor") {
		t.Errorf("the second call of a run with one: %d %s", status, body)
	}
	for _, account := range []string{"team-a", "team-b"} {
		for _, c := range shows[[]caisson.Call](g.host, "usage", "--calls", "--account", account) {
			if c.Account != account || c.Sandbox != "" || (c.Run == "run-b") != (account == "team-b") {
				t.Errorf("account %s is charged for %+v", account, c)
			}
		}
	}
	// Nothing is served without TLS.
	resp, err := http.Get(fmt.Sprintf("http://%s/v1/models", g.addr))
	if err == nil {
		if resp.Body.Close(); resp.StatusCode == 200 {
			t.Error("served without TLS")
		}
	}
}

// TestRemoteGatewayKeys tests that keys are rotated while both daemons run, without a rejected call.
func TestRemoteGatewayKeys(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		testneed.Skip(t, "curl", err.Error())
	}
	t.Parallel()
	g := newRemoteGateway(t, runKey)
	h := serveRemotely(t, g, runKey, g.ok("token", "create", "a-host"))
	h.ok("sandbox", "create", "--name", "a", "--model", remoteModel, "host")
	g.ok("gateway", "run", "put", "direct", "--model", remoteModel)
	works := func(when string) {
		t.Helper()
		if got := h.callAfar("a"); !strings.Contains(got, "Hello from afar.") {
			t.Errorf("%s the sandbox was answered %q", when, got)
		}
	}
	works("at first")
	g.want("the next key is not known yet", http.StatusUnauthorized, mint(t, nextKey, "direct", 0))
	g.credential("set", "OTHER_KEY", nextKey)
	works("with two keys at the gateway")
	g.want("the old key", 200, mint(t, runKey, "direct", 0))
	g.want("the next key", 200, mint(t, nextKey, "direct", 0))
	h.credential("rotate", "RUN_KEY", nextKey)
	works("signed with the next key")
	g.credential("rotate", "RUN_KEY", lastKey)
	works("without the old key at the gateway")
	g.want("the old key", http.StatusUnauthorized, mint(t, runKey, "direct", 0))
	g.credential("rotate", "OTHER_KEY", newKey())
	if got := h.callAfar("a"); strings.Contains(got, "Hello") {
		t.Errorf("signed with a key that the gateway has dropped: %q", got)
	}
	h.credential("rotate", "RUN_KEY", lastKey)
	works("with the key after that")
}

// TestRemoteGatewayDocs tests that the shell script in the documentation, as an example of a program other than
// Caisson, is served.
func TestRemoteGatewayDocs(t *testing.T) {
	for _, program := range []string{"curl", "openssl"} {
		if _, err := exec.LookPath(program); err != nil {
			testneed.Skip(t, program, err.Error())
		}
	}
	t.Parallel()
	page, err := os.ReadFile("../docs/gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, _ := strings.Cut(string(page), "```sh\n")
	script, _, ok := strings.Cut(script, "```")
	if !ok {
		t.Fatal("the script is not there any more")
	}
	g := newRemoteGateway(t, runKey)
	g.ok("gateway", "run", "put", "run-42", "--model", remoteModel)
	g.write("run.key", runKey+"\n")
	script = strings.NewReplacer("https://gateway.example:8443", "https://"+g.addr, "curl ", "curl -sS --cacert "+g.roots+" ").Replace(script)
	cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", script)
	cmd.Dir = g.dir
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"id":"`+remoteModel+`"`) {
		t.Errorf("%v: %s", err, out)
	}
}
