package httpapi_test

import (
	"context"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/httpapi/apitest"
	"github.com/caisson-dev/caisson/internal/poll"
)

// TestTokenEnds tests that requests that are being served end when their token is removed or expires, with the processes that
// they started; those with another token go on.
func TestTokenEnds(t *testing.T) {
	t.Parallel()
	for name, ttl := range map[string]time.Duration{"removed": 0, "expires": time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			other := s.remote(t, "alice")
			sb, err := other.Create(t.Context(), caisson.CreateRequest{})
			if err != nil {
				t.Fatal(err)
			}
			exec := func(c *client.Client) (caisson.Process, error) {
				return c.Exec(t.Context(), string(sb.ID), caisson.ExecRequest{Command: []string{"sleep"}, Stdin: true})
			}
			var c *client.Client
			var token *caisson.Token
			var p caisson.Process
			var events <-chan caisson.Event
			for p == nil { // until the machine is fast enough for the life of the token
				var secret caisson.Secret
				if token, secret, err = s.local(t, "").CreateToken(t.Context(), "alice", "test", ttl); err != nil {
					t.Fatal(err)
				}
				c = connect(t, client.Config{URL: s.url, Token: secret})
				if events, err = c.Watch(t.Context(), "", 0); err == nil {
					p, err = exec(c)
				}
				if ttl *= 4; err != nil && (ttl == 0 || caisson.KindOf(err) != caisson.Unauthed) {
					t.Fatal(err)
				}
			}
			defer p.Close()
			kept, err := exec(other)
			if err != nil {
				t.Fatal(err)
			}
			defer kept.Close()
			if ttl == 0 {
				if err := c.RemoveToken(t.Context(), token.ID); err != nil { // a token can remove itself
					t.Fatal(err)
				}
			}
			if _, err := p.Wait(t.Context()); err == nil {
				t.Error("the process goes on")
			}
			for range events { // until the channel is closed
			}
			poll.Until(t, apitest.Timeout, func() bool { return s.world.RunningProcesses() == 1 })
			if _, err := c.ListTokens(t.Context()); caisson.KindOf(err) != caisson.Unauthed {
				t.Error(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			if _, err := kept.Wait(ctx); ctx.Err() == nil {
				t.Errorf("the process of another token has ended: %v", err)
			}
		})
	}
}
