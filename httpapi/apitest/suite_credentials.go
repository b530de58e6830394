package apitest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func testCredentials(t *testing.T, ctx context.Context, c Cores) {
	if list := must(c.Credentials.ListCredentials(ctx))(t); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	account := must(caisson.CallerOf(ctx))(t).Account
	value := "line one\r\nü \"quoted\" \\ <&> \u2028 \x01\n"
	set := must(c.Credentials.SetCredential(ctx, "ANTHROPIC_API_KEY", caisson.NewSecret(value)))(t)
	if set.Name != "ANTHROPIC_API_KEY" || set.Account != account || set.Kind != "Anthropic API key" || set.RotatedAt != nil {
		t.Errorf("%+v", set)
	}
	stored := func(want string) {
		t.Helper()
		if got := must(c.Secrets.Secret(ctx, account, "ANTHROPIC_API_KEY"))(t); got.Reveal() != want {
			t.Errorf("%d bytes arrived as %d others", len(want), len(got.Reveal()))
		}
	}
	stored(value)
	_, err := c.Credentials.SetCredential(ctx, "ANTHROPIC_API_KEY", caisson.NewSecret("x"))
	Fails(t, err, caisson.Conflict, "")
	long := strings.Repeat("\x02", 64<<10) // each of these characters takes six bytes in JSON
	if r := must(c.Credentials.RotateCredential(ctx, "ANTHROPIC_API_KEY", caisson.NewSecret(long)))(t); r.RotatedAt == nil {
		t.Errorf("%+v", r)
	}
	stored(long)
	must(c.Credentials.SetCredential(ctx, "a.b-c", caisson.NewSecret("x")))(t)
	for name, value := range map[string]string{"E": "", "L": long + "x", "N": "\x00", "U": "\xff", "M": "[redacted]"} {
		_, err := c.Credentials.SetCredential(ctx, name, caisson.NewSecret(value))
		Fails(t, err, caisson.Invalid, "value")
		_, err = c.Credentials.RotateCredential(ctx, "a.b-c", caisson.NewSecret(value))
		Fails(t, err, caisson.Invalid, "value")
	}
	for _, name := range []string{"1A", "A B", "a/b", "ü", "sk-ant-x", strings.Repeat("A", 65)} {
		_, err := c.Credentials.SetCredential(ctx, name, caisson.NewSecret("x"))
		Fails(t, err, caisson.Invalid, "name")
	}
	if list := must(c.Credentials.ListCredentials(ctx))(t); len(list) != 2 || list[0].Name != "ANTHROPIC_API_KEY" || list[1].Kind != "" {
		t.Errorf("%+v", list)
	}
	_, err = c.Credentials.RotateCredential(ctx, "NONE", caisson.NewSecret("x"))
	Fails(t, err, caisson.NotFound, "")
	Fails(t, c.Credentials.RemoveCredential(ctx, "NONE"), caisson.NotFound, "")
	succeeds(t, c.Credentials.RemoveCredential(ctx, "ANTHROPIC_API_KEY"))
	_, err = c.Secrets.Secret(ctx, account, "ANTHROPIC_API_KEY")
	Fails(t, err, caisson.NotFound, "")
}

func testAudit(t *testing.T, ctx context.Context, c Cores) {
	if caller := must(caisson.CallerOf(ctx))(t); !caller.Local {
		_, err := c.Audit.VerifyAudit(ctx, "")
		Fails(t, err, caisson.Denied, "")
		return
	}
	createSandbox(t, ctx, c, caisson.CreateRequest{})
	first := must(c.Audit.VerifyAudit(ctx, ""))(t)
	if first.Problem != "" || first.Events == 0 || first.First != 1 || first.Last != int64(first.Events) || !strings.HasPrefix(first.Head, fmt.Sprintf("%d:", first.Last)) {
		t.Errorf("%+v", first)
	}
	createSandbox(t, ctx, c, caisson.CreateRequest{})
	if r := must(c.Audit.VerifyAudit(ctx, first.Head))(t); r.Problem != "" || r.Events <= first.Events || r.Head == first.Head {
		t.Errorf("%+v", r)
	}
	other := fmt.Sprintf("%d:%s", first.Last, strings.Repeat("0", 64))
	if r := must(c.Audit.VerifyAudit(ctx, other))(t); r.Problem == "" {
		t.Errorf("%+v", r)
	}
	_, err := c.Audit.VerifyAudit(ctx, "ü&=#")
	Fails(t, err, caisson.Invalid, "head")
}
