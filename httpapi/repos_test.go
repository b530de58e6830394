package httpapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/httpapi/apitest"
	"github.com/caisson-dev/caisson/httpapi/protocol"
	"github.com/caisson-dev/caisson/internal/coretest"
	"github.com/caisson-dev/caisson/internal/gitserver"
)

// withDelivery makes a repository and a run whose commits are held.
func withDelivery(t *testing.T, c *client.Client) *caisson.Delivery {
	t.Helper()
	coretest.NeedJobs(t)
	if _, err := c.AddRepo(t.Context(), caisson.Repo{Name: "r", URL: "https://host/o/r"}); err != nil {
		t.Fatal(err)
	}
	run, err := c.StartRun(t.Context(), caisson.RunRequest{
		Agent: "caisson", Prompt: "say " + strings.Repeat("body ", 1000) + "; write .envrc x", Repo: &caisson.RepoRequest{Name: "r"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ended(t, c, run.ID)
	d, err := c.GetDelivery(t.Context(), string(run.ID))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestReposOfOthers: paths of the host are for who has the unix socket, and repositories and deliveries for their account.
func TestReposOfOthers(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := s.local(t, "")
	d := withDelivery(t, c)
	bare := gitserver.Dir(t)
	gitserver.Git(t, bare, "init", "-q", "--bare", "-b", "main")
	gitserver.Seed(t, bare, nil)
	if _, err := c.AddRepo(t.Context(), caisson.Repo{Name: "local", URL: bare}); err != nil {
		t.Error(err)
	}
	_, err := s.remote(t, caisson.LocalAccount).AddRepo(t.Context(), caisson.Repo{Name: "local2", URL: bare})
	apitest.Fails(t, err, caisson.Denied, "")
	for _, other := range []*client.Client{s.local(t, "mallory"), s.remote(t, "mallory")} {
		ctx := t.Context()
		_, err := other.GetRepo(ctx, "r")
		apitest.Fails(t, err, caisson.NotFound, "")
		_, err = other.ListBranches(ctx, "r")
		apitest.Fails(t, err, caisson.NotFound, "")
		_, err = other.FetchRepo(ctx, "r")
		apitest.Fails(t, err, caisson.NotFound, "")
		apitest.Fails(t, other.RemoveRepo(ctx, "r"), caisson.NotFound, "")
		for _, ref := range []caisson.ID{d.ID, d.Run} {
			_, err = other.GetDelivery(ctx, string(ref))
			apitest.Fails(t, err, caisson.NotFound, "")
		}
		_, err = other.RetryDelivery(ctx, d.ID)
		apitest.Fails(t, err, caisson.NotFound, "")
		_, err = other.DropDelivery(ctx, d.ID)
		apitest.Fails(t, err, caisson.NotFound, "")
		_, err = other.StartRun(ctx, caisson.RunRequest{Agent: "caisson", Prompt: "x", Repo: &caisson.RepoRequest{Name: "r"}})
		apitest.Fails(t, err, caisson.NotFound, "")
		if list, err := other.ListRepos(ctx); len(list) > 0 || err != nil {
			t.Error(list, err)
		}
		if list, _, err := other.ListDeliveries(ctx, caisson.DeliveryFilter{}); len(list) > 0 || err != nil {
			t.Error(list, err)
		}
	}
}

// TestDeliveryLists: listings leave out what is long, and say what they cannot choose by.
func TestDeliveryLists(t *testing.T) {
	t.Parallel()
	c := serve(t).local(t, "")
	d := withDelivery(t, c)
	list, more, err := c.ListDeliveries(t.Context(), caisson.DeliveryFilter{Run: d.Run})
	if err != nil || more || len(list) != 1 || list[0].Findings != nil || len(list[0].Body) > protocol.MaxExcerpt+len("…") {
		t.Errorf("%+v, %v", list, err)
	}
	if len(d.Findings) != 1 || len(d.Body) < 5000 {
		t.Errorf("%+v", d)
	}
	for field, f := range map[string]caisson.DeliveryFilter{"run": {Run: d.ID}, "after": {Before: d.Run}} {
		_, _, err := c.ListDeliveries(t.Context(), f)
		apitest.Fails(t, err, caisson.Invalid, field)
	}
	_, _, err = c.ListDeliveries(t.Context(), caisson.DeliveryFilter{States: []caisson.DeliveryState{"lost"}})
	if caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("an unknown state: %v", err)
	}
	_, err = c.RetryDelivery(t.Context(), d.Run) // only by its own id
	apitest.Fails(t, err, caisson.NotFound, "")
	_, err = c.DropDelivery(t.Context(), "no-id")
	apitest.Fails(t, err, caisson.NotFound, "")
}

// TestAddRepoBodies: what a client of another make may send.
func TestAddRepoBodies(t *testing.T) {
	t.Parallel()
	coretest.NeedJobs(t)
	s := serve(t)
	for body, want := range map[string]int{
		`{"name":"a","url":"https://host/o/a"}`:                                                  http.StatusCreated,
		`{"name":"b","url":"https://host/o/b","account":"x","createdAt":"2026-01-01T00:00:00Z"}`: http.StatusCreated,
		`{"name":"c"}`:                          http.StatusBadRequest,
		`{"name":"C","url":"https://host/o/c"}`: http.StatusBadRequest,
		`{"name":"d","url":"https://host/o/d","forge":"sourceforge"}`:                              http.StatusBadRequest,
		`{"name":"e","url":"https://host/o/e","authors":"nobody"}`:                                 http.StatusBadRequest,
		`{"name":"f","url":"https://host/o/f","password":"x"}`:                                     http.StatusBadRequest,
		`{"name":"g","url":"https://host/o/g","hostKeys":["k"` + strings.Repeat(`,"k"`, 20) + `]}`: http.StatusBadRequest,
	} {
		status, _, answer := s.raw(t, true, http.MethodPost, protocol.Prefix+"/repos", body, nil)
		if status != want {
			t.Errorf("%s: status %d, want %d: %s", body, status, want, answer)
		}
		var r caisson.Repo
		if status == http.StatusCreated && (json.Unmarshal([]byte(answer), &r) != nil || r.Account != caisson.LocalAccount || r.CreatedAt.Year() == 2026 && r.CreatedAt.YearDay() == 1) {
			t.Errorf("%s: answered %s", body, answer)
		}
	}
}

// TestSandboxRepoPaths: what is no path in a sandbox does not get further.
func TestSandboxRepoPaths(t *testing.T) {
	c := serve(t).local(t, "")
	req := caisson.RepoRequest{Name: "r"}
	for _, dir := range []string{"", "w", "./w", "/w\x00"} {
		_, err := c.GrantRepo(t.Context(), "x", req, dir)
		apitest.Fails(t, err, caisson.Invalid, "dir")
		if dir != "" {
			_, err = c.DeliverRepo(t.Context(), "x", req, dir)
			apitest.Fails(t, err, caisson.Invalid, "dir")
		}
	}
}

// TestAddRepoOnce: a request that is repeated with its key is done once.
func TestAddRepoOnce(t *testing.T) {
	t.Parallel()
	coretest.NeedJobs(t)
	c := serve(t).local(t, "")
	ctx := client.WithIdempotencyKey(t.Context(), "k")
	for range 2 {
		if _, err := c.AddRepo(ctx, caisson.Repo{Name: "r", URL: "https://host/o/r"}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.AddRepo(ctx, caisson.Repo{Name: "other", URL: "https://host/o/r"})
	apitest.Fails(t, err, caisson.Invalid, protocol.IdempotencyHeader)
	_, err = c.AddRepo(t.Context(), caisson.Repo{Name: "r", URL: "https://host/o/r"})
	apitest.Fails(t, err, caisson.Conflict, "")
}
