package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/caisson-dev/caisson"
)

// repoCmd contains the commands that manage repositories.
type repoCmd struct {
	Add      repoAddCmd      `cmd:"" help:"Add a git repository, and fetch it."`
	Ls       repoLsCmd       `cmd:"" help:"List repositories."`
	Show     repoShowCmd     `cmd:"" help:"Show everything about a repository."`
	Branches repoBranchesCmd `cmd:"" help:"List the branches of a repository."`
	Fetch    repoFetchCmd    `cmd:"" help:"Update Caisson's mirror of a repository."`
	Grant    repoGrantCmd    `cmd:"" help:"Grant a sandbox access to a repository, and clone it there."`
	Deliver  repoDeliverCmd  `cmd:"" help:"Send the commits of a sandbox to the remote of a repository."`
	Rm       repoRmCmd       `cmd:"" help:"Remove repositories; their remotes are not changed."`
}

func repoName(r *caisson.Repo) string { return r.Name }

// repoAddCmd adds a repository. AuthorName and AuthorEmail become the author of new commits, unless Authors is keep.
type repoAddCmd struct {
	Name         string   `arg:"" help:"What it is called here: lower-case letters, digits, dots, dashes and underscores."`
	URL          string   `arg:"" help:"URL of the repository: https://…, ssh://user@host/path, user@host:path, or a directory of the daemon's machine." complete:"file"`
	Forge        string   `help:"Type of the forge: github, gitlab, gitea (and Forgejo), or none; the default depends on the server's name." enum:",github,gitlab,gitea,none" default:"" placeholder:"FORGE"`
	API          string   `name:"api" help:"Base URL of the forge's API, if it is not the default one." placeholder:"URL"`
	Credential   string   `help:"Credential to fetch and push with: a token, user:password, an SSH private key or a GitHub App; default, at a forge known by its name, GITHUB_TOKEN, GITLAB_TOKEN or GITEA_TOKEN, if there is one." placeholder:"NAME" complete:"credential"`
	HostKey      []string `help:"Host key of the SSH server, as a line of known_hosts; may be repeated." placeholder:"LINE" sep:"none"`
	KnownHosts   string   `help:"Read the SSH server's keys from this file; default ~/.ssh/known_hosts." placeholder:"FILE" complete:"file"`
	Protect      []string `help:"Never push to branches of this name, as release/*; may be repeated. The default branch is protected anyway." placeholder:"PATTERN" sep:"none"`
	Allow        []string `help:"Allow commits to change protected files with this name, for example .github/workflows/*; may be repeated." placeholder:"PATTERN" sep:"none"`
	AllowSecrets []string `help:"Hold a delivery for you, instead of refusing it, when something in files of this name looks like a secret; may be repeated." placeholder:"PATTERN" sep:"none"`
	PullTemplate string   `help:"File with a template for the body of pull requests; see docs/relay.md." placeholder:"FILE" complete:"file"`
	Authors      string   `help:"set: new commits have the author --author-name; keep: the author that the agent has set. Default set." enum:",set,keep" default:"" placeholder:"HOW"`
	AuthorName   string   `help:"Author of new commits; default Caisson." placeholder:"NAME"`
	AuthorEmail  string   `help:"E-mail address of that author; default caisson@localhost." placeholder:"ADDRESS"`
	SigningKey   string   `help:"Credential with an SSH private key for signing new commits." placeholder:"NAME" complete:"credential"`
}

func (c *repoAddCmd) Help() string {
	return `A sandbox with access clones the repository from http://git.caisson.internal/NAME and pushes to it. It has no access to the remote or the
credential. What it has done is checked, and goes to the remote as one branch when the run has succeeded.

` + examples("caisson repo add web https://github.com/acme/web", "caisson repo add web git@github.com:acme/web.git --credential DEPLOY_KEY",
		"caisson repo add api https://git.acme.example/api --forge gitea --protect 'release/*'",
		"caisson repo add docs https://github.com/acme/docs --pull-template pull.md", "caisson repo add notes ~/notes --authors keep")
}

func (c *repoAddCmd) Run(ctx context.Context, a *app, r caisson.Repo, api api) error {
	made, err := api.AddRepo(ctx, r)
	if err != nil {
		return err
	}
	if made.Head == "" {
		a.infof("caisson: the remote has no default branch")
	}
	return printDone(a, made, made.Name)
}

// ProvideRepo returns the repository that the arguments specify.
func (c *repoAddCmd) ProvideRepo(a *app) (caisson.Repo, error) {
	r := caisson.Repo{
		Name: c.Name, URL: c.URL, Forge: caisson.Forge(c.Forge), API: c.API, Credential: c.Credential, Protected: c.Protect, Allow: c.Allow,
		AllowSecrets: c.AllowSecrets, Authors: c.Authors, AuthorName: c.AuthorName, AuthorEmail: c.AuthorEmail, SigningKey: c.SigningKey,
	}
	if c.Authors == caisson.AuthorKeep && (c.AuthorName != "" || c.AuthorEmail != "") {
		return r, usagef("repo add", "--author-name and --author-email are of no use with --authors keep")
	}
	var err error
	if r.URL, err = repoURL(c.URL); err != nil {
		return r, err
	}
	if r.PullBody, err = pullTemplate(c.PullTemplate); err != nil {
		return r, err
	}
	r.HostKeys, err = c.hostKeys(a, r.URL)
	return r, err
}

// pullTemplate reads the template of the bodies of pull requests from a file; it returns "" if file is "".
func pullTemplate(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := readSmall(file)
	if err == nil && len(text) == 0 {
		err = fmt.Errorf("%s is empty", file)
	}
	return string(text), localError("pullTemplate", file, err)
}

// repoLsCmd lists repositories.
type repoLsCmd struct{}

func (c *repoLsCmd) Help() string { return examples("caisson repo ls", "caisson repo ls -q") }

func (c *repoLsCmd) Run(ctx context.Context, a *app, api api) error {
	return asList(a, []column[*caisson.Repo]{
		{name: "NAME", value: repoName},
		{name: "FORGE", value: func(r *caisson.Repo) string { return string(r.Forge) }},
		{name: "BRANCH", value: func(r *caisson.Repo) string { return r.Head }},
		{name: "CREDENTIAL", value: func(r *caisson.Repo) string { return r.Credential }},
		{name: "FETCHED", value: func(r *caisson.Repo) string { return ago(&r.FetchedAt) }},
		{name: "URL", value: func(r *caisson.Repo) string { return r.URL }},
	})(api.ListRepos(ctx))
}

// repoArg is the argument that identifies a repository.
type repoArg struct {
	Name string `arg:"" help:"Name of the repository; see repo ls." complete:"repo"`
}

// repoShowCmd shows one repository.
type repoShowCmd struct{ repoArg }

func (c *repoShowCmd) Help() string {
	return examples("caisson repo show web", "caisson repo show web -o json")
}

func (c *repoShowCmd) Run(ctx context.Context, a *app, api api) error {
	return asOne(a, repoName, repoRows)(api.GetRepo(ctx, c.Name))
}

// repoRows returns the properties of a repository, as pairs of a name and a value.
func repoRows(r *caisson.Repo) [][2]string {
	rows := [][2]string{
		{"Name", r.Name}, {"URL", r.URL}, {"Forge", string(r.Forge)}, {"API", r.API}, {"Default branch", r.Head}, {"Credential", r.Credential},
		{"Authors", r.Authors}, {"Author", strings.TrimSpace(r.AuthorName + " " + bracketed(r.AuthorEmail))}, {"Signing key", r.SigningKey},
		{"Created", formatTime(r.CreatedAt)}, {"Fetched", formatTime(r.FetchedAt)},
	}
	for _, more := range []struct {
		name   string
		values []string
	}{{"Protected", r.Protected}, {"Allowed", r.Allow}, {"Secrets held", r.AllowSecrets}, {"Host key", r.HostKeys}, {"Pull request", strings.Split(r.PullBody, "\n")}} {
		for _, v := range more.values {
			rows = append(rows, [2]string{more.name, v})
		}
	}
	return rows
}

// bracketed returns an e-mail address in angle brackets, or "" if the address is "".
func bracketed(address string) string {
	if address == "" {
		return ""
	}
	return "<" + address + ">"
}

// repoBranchesCmd lists branches.
type repoBranchesCmd struct{ repoArg }

func (c *repoBranchesCmd) Help() string {
	return "The list is as of the last fetch of the repository.\n\n" + examples("caisson repo branches web", "caisson repo fetch web && caisson repo branches web -q")
}

func (c *repoBranchesCmd) Run(ctx context.Context, a *app, api api) error {
	return asList(a, []column[caisson.Branch]{
		{name: "BRANCH", value: func(b caisson.Branch) string { return b.Name }},
		{name: "COMMIT", value: func(b caisson.Branch) string { return b.Commit }},
	})(api.ListBranches(ctx, c.Name))
}

// repoFetchCmd updates the mirror of a repository from its remote.
type repoFetchCmd struct{ repoArg }

func (c *repoFetchCmd) Help() string {
	return "Runs do it by themselves.\n\n" + examples("caisson repo fetch web")
}

func (c *repoFetchCmd) Run(ctx context.Context, a *app, api api) error {
	return asDone(a, repoName)(api.FetchRepo(ctx, c.Name))
}

// repoRmCmd removes repositories.
type repoRmCmd struct {
	Names []string `arg:"" name:"name" help:"Names of repositories." complete:"repo"`
}

func (c *repoRmCmd) Help() string {
	return "A repository with pending deliveries cannot be removed until they are sent or dropped.\n\n" + examples("caisson repo rm web")
}

func (c *repoRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Names, api.RemoveRepo)
}
