package apitest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
	"github.com/caisson-dev/caisson/internal/poll"
)

// setToken stores a credential with this name, which repositories need for pull requests.
func setToken(t *testing.T, ctx context.Context, c Cores, name string) {
	t.Helper()
	must(c.Credentials.SetCredential(ctx, name, caisson.NewSecret("token")))(t)
}

// addRepo adds a repository of GitHub with this name.
func addRepo(t *testing.T, ctx context.Context, c Cores, name string) *caisson.Repo {
	t.Helper()
	return must(c.Repos.AddRepo(ctx, caisson.Repo{Name: name, URL: "https://github.com/o/" + name}))(t)
}

func testRepos(t *testing.T, ctx context.Context, c Cores) {
	caller := must(caisson.CallerOf(ctx))(t)
	setToken(t, ctx, c, "TOKEN")
	want := caisson.Repo{
		Name: "b.1_x-y", URL: "https://host/o/u.git", Forge: caisson.ForgeGitea, API: "https://host/api/v1", Credential: "TOKEN",
		Protected: []string{"release/*"}, Allow: []string{".github/workflows/*"},
		AllowSecrets: []string{"testdata/**"}, PullBody: "{{.Answer}}\n<&>", Authors: caisson.AuthorKeep,
	}
	got := must(c.Repos.AddRepo(ctx, want))(t)
	want.Account, want.Local, want.Head = caller.Account, caller.Local, "main"
	times := cmpopts.IgnoreFields(caisson.Repo{}, "CreatedAt", "FetchedAt")
	if diff := cmp.Diff(&want, got, times); diff != "" || got.CreatedAt.IsZero() || got.FetchedAt.IsZero() {
		t.Errorf("added at %v, fetched at %v:\n%s", got.CreatedAt, got.FetchedAt, diff)
	}
	again := *got
	// A repository that was read can be sent back: fields that only Caisson sets are ignored.
	again.Name, again.Account, again.Local, again.Head = "a", "unknown-account", !caller.Local, "other"
	if got := must(c.Repos.AddRepo(ctx, again))(t); got.Account != caller.Account || got.Local != caller.Local || got.Head != "main" {
		t.Errorf("%+v", got)
	}
	_, err := c.Repos.AddRepo(ctx, caisson.Repo{Name: "a", URL: "https://host/o/a"})
	Fails(t, err, caisson.Conflict, "")
	for _, name := range []string{"", "-x", "A", "a/b", "../x", strings.Repeat("x", 65)} {
		_, err := c.Repos.AddRepo(ctx, caisson.Repo{Name: name, URL: "https://host/o/a"})
		Fails(t, err, caisson.Invalid, "name")
	}
	_, err = c.Repos.AddRepo(ctx, caisson.Repo{Name: "u", URL: "https://unreachable/o/a"})
	Fails(t, err, caisson.Unavailable, "")
	local := gitserver.Dir(t)
	gitserver.Git(t, local, "init", "-q", "--bare", "-b", "main")
	gitserver.Seed(t, local, nil)
	if _, err = c.Repos.AddRepo(ctx, caisson.Repo{Name: "local", URL: local}); caller.Local {
		succeeds(t, err)
		succeeds(t, c.Repos.RemoveRepo(ctx, "local"))
	} else {
		Fails(t, err, caisson.Denied, "")
	}

	if list := must(c.Repos.ListRepos(ctx))(t); len(list) != 2 || list[0].Name != "a" || !cmp.Equal(&want, list[1], times) {
		t.Errorf("%+v", list)
	}
	if got := must(c.Repos.GetRepo(ctx, want.Name))(t); !cmp.Equal(&want, got, times) {
		t.Errorf("%+v", got)
	}
	if r := must(c.Repos.FetchRepo(ctx, "a"))(t); !r.FetchedAt.After(got.FetchedAt) {
		t.Errorf("fetched at %v", r.FetchedAt)
	}
	if list := must(c.Repos.ListBranches(ctx, "a"))(t); len(list) != 2 || list[1].Name != "main" || len(list[1].Commit) != 40 {
		t.Errorf("%+v", list)
	}
	succeeds(t, c.Repos.RemoveRepo(ctx, "a"))
	Fails(t, c.Repos.RemoveRepo(ctx, "a"), caisson.NotFound, "")
	for _, name := range []string{"a", "nowhere", "ü/ %2e?#&="} {
		_, err := c.Repos.GetRepo(ctx, name)
		Fails(t, err, caisson.NotFound, "")
		_, err = c.Repos.FetchRepo(ctx, name)
		Fails(t, err, caisson.NotFound, "")
		_, err = c.Repos.ListBranches(ctx, name)
		Fails(t, err, caisson.NotFound, "")
	}
}

func testDeliveries(t *testing.T, ctx context.Context, c Cores) {
	setToken(t, ctx, c, "GITHUB_TOKEN")
	addRepo(t, ctx, c, "r")
	addRepo(t, ctx, c, "other")
	deliver := func(prompt string, repo caisson.RepoRequest) *caisson.Run {
		t.Helper()
		run := must(c.Runs.StartRun(ctx, caisson.RunRequest{Agent: "caisson", Prompt: prompt, Repo: &repo}))(t)
		return waitForEnd(t, ctx, c, run.ID)
	}
	asked := caisson.RepoRequest{Name: "r", Base: "feature", Branch: "fix/ü", Read: []string{"main"}, Pull: true, Ready: true, Title: "T <&>"}
	run := deliver("say done; write new x", asked)
	if diff := cmp.Diff(&asked, run.Request.Repo); diff != "" {
		t.Error(diff)
	}
	got := run.Result.Delivery
	if got == nil || got.State != caisson.DeliveryDelivered || got.Repo != "r" || got.Branch != "fix/ü" || got.URL == "" {
		t.Fatalf("%+v", got)
	}
	d := must(c.Repos.GetDelivery(ctx, string(run.ID)))(t)
	if d.ID != got.ID || d.Run != run.ID || d.Base != "feature" || d.Title != "T <&>" || !d.Pull || !d.Ready || d.Number != 7 || d.Body == "" {
		t.Errorf("%+v", d)
	}
	if same := must(c.Repos.GetDelivery(ctx, string(d.ID)))(t); !cmp.Equal(d, same) {
		t.Errorf("%+v", same)
	}
	if none := deliver("say nothing", caisson.RepoRequest{Name: "r"}).Result.Delivery; none == nil || none.ID != "" || none.State != "" || none.Repo != "r" {
		t.Errorf("nothing to deliver: %+v", none)
	}
	held := deliver("say done; write .envrc x", caisson.RepoRequest{Name: "other"}).Result.Delivery.ID
	failed := deliver("say done; write new x", caisson.RepoRequest{Name: "r", Branch: "refused"}).Result.Delivery.ID
	testDeliveryPages(t, ctx, c, run.ID, []caisson.ID{failed, held, d.ID})

	if d := must(c.Repos.GetDelivery(ctx, string(held)))(t); len(d.Findings) != 1 {
		t.Errorf("%+v", d)
	}
	if d := must(c.Repos.GetDelivery(ctx, string(failed)))(t); !strings.Contains(d.Error, "the remote refuses") {
		t.Errorf("%+v", d)
	}
	if d := must(c.Repos.RetryDelivery(ctx, failed))(t); d.State != caisson.DeliveryWaiting {
		t.Errorf("%+v", d)
	}
	Fails(t, c.Repos.RemoveRepo(ctx, "r"), caisson.Conflict, "")
	for _, id := range []caisson.ID{failed, held} {
		if d := must(c.Repos.DropDelivery(ctx, id))(t); d.State != caisson.DeliveryDropped || d.EndedAt.IsZero() {
			t.Errorf("%+v", d)
		}
	}
	for _, do := range []func(context.Context, caisson.ID) (*caisson.Delivery, error){c.Repos.RetryDelivery, c.Repos.DropDelivery} {
		_, err := do(ctx, d.ID)
		Fails(t, err, caisson.Conflict, "")
		_, err = do(ctx, caisson.NewID(caisson.DeliveryPrefix))
		Fails(t, err, caisson.NotFound, "")
	}
	_, err := c.Repos.GetDelivery(ctx, "ü/ %2e?#&=")
	Fails(t, err, caisson.NotFound, "")
	testRepoRequests(t, ctx, c)
}

// testDeliveryPages checks the filters of the list of deliveries. all are the ids of all deliveries, the newest first; the last
// one is the delivery of run.
func testDeliveryPages(t *testing.T, ctx context.Context, c Cores, run caisson.ID, all []caisson.ID) {
	for _, tt := range []struct {
		f    caisson.DeliveryFilter
		want []caisson.ID
		more bool
	}{
		{caisson.DeliveryFilter{}, all, false},
		{caisson.DeliveryFilter{Limit: 2}, all[:2], true},
		{caisson.DeliveryFilter{Limit: 2, Before: all[1]}, all[2:], false},
		{caisson.DeliveryFilter{States: []caisson.DeliveryState{caisson.DeliveryHeld, caisson.DeliveryFailed}}, all[:2], false},
		{caisson.DeliveryFilter{Repo: "other"}, all[1:2], false},
		{caisson.DeliveryFilter{Run: run}, all[2:], false},
		{caisson.DeliveryFilter{Run: run, Repo: "other"}, nil, false},
	} {
		page, more, err := c.Repos.ListDeliveries(ctx, tt.f)
		var got []caisson.ID
		for _, d := range page {
			got = append(got, d.ID)
		}
		if err != nil || more != tt.more || !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %v, %t, %v; want %v", tt.f, got, more, err, tt.want)
		}
	}
}

// testRepoRequests checks that requests for runs with an unknown repository, or with both a repository and another workspace,
// fail.
func testRepoRequests(t *testing.T, ctx context.Context, c Cores) {
	for _, tt := range []struct {
		req  caisson.RunRequest
		kind caisson.Kind
	}{
		{caisson.RunRequest{Repo: &caisson.RepoRequest{Name: "nowhere"}}, caisson.NotFound},
		{caisson.RunRequest{Repo: &caisson.RepoRequest{Name: "r"}, Kind: caisson.WorkspaceCopy}, caisson.Invalid},
		{caisson.RunRequest{Repo: &caisson.RepoRequest{Name: "r"}, Workspace: strings.NewReader("")}, caisson.Invalid},
	} {
		tt.req.Agent, tt.req.Prompt = "caisson", "say a"
		if _, err := c.Runs.StartRun(ctx, tt.req); caisson.KindOf(err) != tt.kind {
			t.Errorf("%+v: %v, want %s", tt.req, err, tt.kind)
		}
	}
}

// testSandboxRepos checks that a sandbox without a run can be granted access to a repository, and that its changes are
// delivered on request.
func testSandboxRepos(t *testing.T, ctx context.Context, c Cores) {
	setToken(t, ctx, c, "GITHUB_TOKEN")
	addRepo(t, ctx, c, "r")
	sb := string(createSandbox(t, ctx, c, caisson.CreateRequest{Name: "dev"}).ID)
	g := must(c.Repos.GrantRepo(ctx, "dev", caisson.RepoRequest{Name: "r", Base: "feature", Branch: "b", Read: []string{"main"}}, "/w"))(t)
	if g.URL != "http://git.caisson.internal/r" || g.Start != "feature" || g.Branch != "b" || g.From == "" {
		t.Errorf("%+v", g)
	}
	must(c.Files.StatFile(ctx, sb, "/w/README"))(t)
	ask := caisson.RepoRequest{Name: "r", Pull: true, Title: "T"}
	_, err := c.Repos.DeliverRepo(ctx, "dev", ask, "/w")
	Fails(t, err, caisson.NotFound, "")
	must(c.Files.WriteFile(ctx, sb, "/w/new", 0, strings.NewReader("new")))(t)
	d := must(c.Repos.DeliverRepo(ctx, "dev", ask, "/w"))(t)
	if string(d.Sandbox) != sb || d.Run != "" || d.Title != "T" || !d.Pull {
		t.Errorf("%+v", d)
	}
	poll.Until(t, Timeout, func() bool {
		return must(c.Repos.GetDelivery(ctx, string(d.ID)))(t).State == caisson.DeliveryDelivered
	})
	for _, ref := range []string{"nobody", "ü/ %2e?#&="} {
		_, err := c.Repos.GrantRepo(ctx, ref, ask, "/w")
		Fails(t, err, caisson.NotFound, "")
		_, err = c.Repos.DeliverRepo(ctx, ref, ask, "/w")
		Fails(t, err, caisson.NotFound, "")
	}
	createSandbox(t, ctx, c, caisson.CreateRequest{Name: "other"})
	_, err = c.Repos.GrantRepo(ctx, "other", caisson.RepoRequest{Name: "r", Base: "nowhere"}, "/x")
	Fails(t, err, caisson.Invalid, "repo.base")
	ask.Name = "nowhere"
	_, err = c.Repos.GrantRepo(ctx, "other", ask, "/w")
	Fails(t, err, caisson.NotFound, "")
}
