package test_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestPromise4TokensReachNotTheHost tests that a client with a token cannot make the daemon connect to its own host, in
// any notation of the address, and cannot distinguish open ports from closed ones. Notations of addresses are tested in
// internal/reach.
func TestPromise4TokensReachNotTheHost(t *testing.T) {
	w := newWorld(t)
	const public4, public6 = "198.51.100.77", "2001:db8:10::77" // Addresses that lead to the host through a router.
	w.configure("publicAddresses: [" + public4 + ", '2001:db8:10::70/124']")
	w.serve("--listen", "127.0.0.1:7070")
	token := w.ok("token", "create", "-q", "test")
	on := w.inside.listenAll(t, 7777)
	w.resolver.set("own.example.net", hostAddr4)
	w.resolver.set("both.example.net", goodAddr4, hostAddr4, public6)
	w.resolver.set("nat64.example.net", "64:ff9b::cb00:7102")

	client := &http.Client{Timeout: hang, Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = w.inside.run(func() error {
			c, err = new(net.Dialer).DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}}}
	defer client.CloseIdleConnections()
	// ask returns the refusal of a request that leads to an address.
	ask := func(path string, body any) string {
		t.Helper()
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:7070/api/v1"+path, bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d %s", resp.StatusCode, answer)
	}

	for _, host := range []string{hostAddr4, "own.example.net", public4, "nat64.example.net"} {
		open := ask("/repos", map[string]string{"name": "r", "url": "http://" + host + ":7777/r"})
		closed := ask("/repos", map[string]string{"name": "r", "url": "http://" + host + ":7778/r"})
		if open != closed || !strings.HasPrefix(open, "403 ") {
			t.Errorf("%s:\n%s\n%s", host, open, closed)
		}
	}
	if got := ask("/repos", map[string]string{"name": "r", "url": "http://both.example.net:7777/r"}); strings.HasPrefix(got, "2") {
		t.Errorf("a name of this host and another one: %s", got)
	}
	if got := ask("/repos", map[string]string{"name": "r", "url": "http://" + goodName + "/r"}); !strings.Contains(got, "is not git's smart HTTP") {
		t.Errorf("a remote elsewhere is not asked: %s", got)
	}
	for _, host := range []string{hostAddr4, public4} {
		if got := ask("/images/pull", map[string]string{"reference": host + ":7777/a/b"}); !strings.Contains(got, "insecureRegistries") {
			t.Errorf("an image at %s: %s", host, got)
		}
	}
	// The client cannot give a sandbox such access either.
	for _, host := range []string{hostAddr4, hostAddr6, public4, public6, "64:ff9b::c633:644d"} {
		policy := caisson.Policy{Rules: []caisson.Rule{{Action: caisson.Allow, Host: host}}}
		if got := ask("/sandboxes", map[string]any{"policy": policy}); !strings.HasPrefix(got, "403 ") {
			t.Errorf("a rule for %s: %s", host, got)
		}
	}
	if v := on.visits(); len(v) > 0 {
		t.Errorf("a service of the host was visited: %s", strings.Join(v, "; "))
	}
	// Clients of the unix socket may name the host itself.
	w.fails(7, "", "repo", "add", "r", "http://"+hostAddr4+":7777/r")
	if v := on.visits(); len(v) == 0 {
		t.Error("a local caller did not reach the host's own address")
	}
}
