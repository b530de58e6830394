package httpapi_test

import (
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/httpapi/apitest"
)

// TestLabels: no request makes an object that looks like one of Caisson's own, over whichever transport.
func TestLabels(t *testing.T) {
	t.Parallel()
	s := serve(t)
	ours := map[string]string{"a": "b", "caisson/run": "rn-aaaaaaaaaaaaaaaa"}
	theirs := map[string]string{"caisson": "x", "caissons/run": "y", "my/caisson/run": "z"}
	for name, c := range map[string]*client.Client{"socket": s.local(t, "alice"), "token": s.remote(t, "alice")} {
		try := func(labels map[string]string) map[string]error {
			ctx, errs := t.Context(), map[string]error{}
			sb, err := c.Create(ctx, caisson.CreateRequest{Labels: labels})
			errs["create"] = err
			if err != nil {
				if sb, err = c.Create(ctx, caisson.CreateRequest{}); err != nil {
					t.Fatal(err)
				}
			}
			_, errs["fork"] = c.Fork(ctx, string(sb.ID), caisson.ForkRequest{Count: 1, Labels: labels})
			_, errs["snapshot"] = c.Snapshot(ctx, string(sb.ID), caisson.SnapshotRequest{Labels: labels})
			_, errs["template"] = c.PutTemplate(ctx, caisson.Template{Name: "t", Image: "host", Labels: labels})
			_, errs["run"] = c.StartRun(ctx, caisson.RunRequest{Agent: "caisson", Prompt: "x", Labels: labels})
			_, errs["upload"] = c.StartRun(ctx, caisson.RunRequest{
				Agent: "caisson", Prompt: "x", Labels: labels, Workspace: strings.NewReader(strings.Repeat("\x00", 1024)),
			})
			return errs
		}
		for what, err := range try(ours) {
			t.Run(name+" "+what, func(t *testing.T) { apitest.Fails(t, err, caisson.Invalid, "labels") })
		}
		for what, err := range try(theirs) {
			if err != nil {
				t.Errorf("%s, %s with labels of the caller's own: %v", name, what, err)
			}
		}
	}
}

// TestStepTime: what a token holder's template may take to be built is bounded.
func TestStepTime(t *testing.T) {
	s := serve(t)
	tpl := caisson.Template{Name: "t", Image: "host", Setup: []caisson.SetupStep{{Run: []string{"a"}, Timeout: caisson.Duration(30 * time.Minute)}}}
	if _, err := s.remote(t, "alice").PutTemplate(t.Context(), tpl); err != nil {
		t.Error(err)
	}
	tpl.Setup[0].Timeout++
	_, err := s.remote(t, "alice").PutTemplate(t.Context(), tpl)
	apitest.Fails(t, err, caisson.Denied, "setup[0].timeout")
	if _, err := s.local(t, "alice").PutTemplate(t.Context(), tpl); err != nil {
		t.Error(err)
	}
}
