package main

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// templateCmd contains the commands that manage templates.
type templateCmd struct {
	Ls    templateLsCmd    `cmd:"" help:"List templates."`
	Show  templateShowCmd  `cmd:"" help:"Show everything about a template."`
	Put   templatePutCmd   `cmd:"" aliases:"add" help:"Store a template from a YAML file."`
	Pull  templatePullCmd  `cmd:"" help:"Pull a template's image."`
	Build templateBuildCmd `cmd:"" help:"Pull a template's image and run its set-up steps."`
	Rm    templateRmCmd    `cmd:"" help:"Remove templates."`
}

func templateName(t *caisson.Template) string { return t.Name }

// templateLsCmd lists templates.
type templateLsCmd struct{}

func (c *templateLsCmd) Help() string {
	return examples("caisson template ls", "caisson template ls -o yaml")
}

func (c *templateLsCmd) Run(ctx context.Context, a *app, api api) error {
	return asList(a, []column[*caisson.Template]{
		{name: "NAME", value: templateName},
		{name: "IMAGE", value: func(t *caisson.Template) string { return t.Image }},
		{name: "BUILT", value: func(t *caisson.Template) string {
			if t.Built == nil {
				return ""
			}
			return age(t.Built.At) + " ago"
		}},
		{name: "POOL", value: func(t *caisson.Template) string { return strconv.Itoa(t.Pool) }},
		{name: "DESCRIPTION", value: func(t *caisson.Template) string { return t.Description }},
	})(api.ListTemplates(ctx))
}

// templateArg is the argument that identifies a template.
type templateArg struct {
	Template string `arg:"" help:"Name." complete:"template"`
}

// templateShowCmd shows one template.
type templateShowCmd struct{ templateArg }

func (c *templateShowCmd) Help() string {
	return examples("caisson template show host", "caisson template show web -o yaml")
}

func (c *templateShowCmd) Run(ctx context.Context, a *app, api api) error {
	return asOne(a, templateName, templateRows)(api.GetTemplate(ctx, c.Template))
}

// templateRows returns the properties of a template, as pairs of a name and a value.
func templateRows(t *caisson.Template) [][2]string {
	rows := [][2]string{{"Name", t.Name}, {"Account", t.Account}, {"Description", t.Description}, {"Labels", formatPairs(t.Labels)}}
	rows = append(rows, specRows(caisson.Spec{
		Image: t.Image, Command: t.Command, Env: t.Env, Workdir: t.Workdir, User: t.User, Resources: t.Resources, Mounts: t.Mounts,
		Policy: t.Policy,
	})...)
	for i, s := range t.Setup {
		rows = append(rows, [2]string{"Step " + strconv.Itoa(i+1), quoteCommand(s.Run)})
	}
	if t.Built != nil {
		rows = append(rows, [2]string{"Built", formatTime(t.Built.At)})
	}
	return rows
}

// templatePutCmd stores a template.
type templatePutCmd struct {
	File string `arg:"" help:"YAML file, or - for standard input." complete:"file"`
}

func (c *templatePutCmd) Help() string {
	return "A template in YAML:\n\n" + strings.Join([]string{
		"    name: web",
		"    image: debian:12",
		"    resources: {memory: 4GiB, cpus: 2}",
		"    ttl: 1h",
		"    setup:",
		"    - run: [sh, -c, 'apt-get update && apt-get install -y python3']",
	}, "\n") + "\n\n" + examples("caisson template put web.yaml", "caisson template build web")
}

// ProvideTemplate reads the template from the file c.File.
func (c *templatePutCmd) ProvideTemplate(a *app) (*caisson.Template, error) {
	return a.readTemplate(c.File)
}

func (c *templatePutCmd) Run(ctx context.Context, a *app, t *caisson.Template, api api) error {
	return asDone(a, templateName)(api.PutTemplate(ctx, *t))
}

// readTemplate reads a template file. Relative paths in it are relative to the file's directory.
func (a *app) readTemplate(file string) (*caisson.Template, error) {
	var t caisson.Template
	err := a.readYAML(file, &t)
	switch {
	case err != nil:
		return nil, err
	case t.Name == "":
		return nil, caisson.Invalidf("name", "is missing, in %s", file)
	}
	dir := filepath.Dir(file) // the working directory for standard input
	for i := range t.Mounts {
		if t.Mounts[i].Source, err = absFrom(dir, t.Mounts[i].Source); err != nil {
			return nil, err
		}
	}
	for _, scheme := range []string{"dir:", "tar:"} {
		if path, ok := strings.CutPrefix(t.Image, scheme); ok {
			if path, err = absFrom(dir, path); err != nil {
				return nil, err
			}
			t.Image = scheme + path
		}
	}
	return &t, nil
}

// templatePullCmd pulls a template's image.
type templatePullCmd struct {
	templateArg
	registryLogin
}

func (c *templatePullCmd) Help() string { return examples("caisson template pull web") }

func (c *templatePullCmd) Run(ctx context.Context, a *app, api api) error {
	t, err := api.GetTemplate(ctx, c.Template)
	if err != nil {
		return err
	}
	return asDone(a, imageDigest)(pullImage(ctx, a, api, caisson.PullRequest{Reference: t.Image}, c.registryLogin))
}

// templateBuildCmd pulls the image of a template and runs its set-up steps.
type templateBuildCmd struct {
	Template string `arg:"" help:"Name, or a YAML file that is stored first." complete:"template"`
	registryLogin
}

func (c *templateBuildCmd) Help() string {
	return examples("caisson template build web", "caisson template build ./web.yaml")
}

// ProvideTemplate reads the template if the argument is a file. Otherwise it returns nil.
func (c *templateBuildCmd) ProvideTemplate(a *app) (*caisson.Template, error) {
	if strings.HasSuffix(c.Template, ".yaml") || strings.HasSuffix(c.Template, ".yml") {
		return a.readTemplate(c.Template)
	}
	return nil, nil //nolint:nilnil // the argument is the name of a stored template
}

func (c *templateBuildCmd) Run(ctx context.Context, a *app, t *caisson.Template, api api) (err error) {
	if t != nil {
		t, err = api.PutTemplate(ctx, *t)
	} else {
		t, err = api.GetTemplate(ctx, c.Template)
	}
	if err != nil {
		return err
	}
	if isPathImage(t.Image) { // this command opens the path, because the daemon opens none
		if _, err := pullImage(ctx, a, api, caisson.PullRequest{Reference: t.Image}, c.registryLogin); err != nil {
			return err
		}
	}
	auth, err := c.auth(a, t.Image)
	if err != nil {
		return err
	}
	p := newProgress(a)
	t, err = api.BuildTemplate(ctx, t.Name, auth, p.update)
	p.end()
	return asDone(a, templateName)(t, err)
}

// templateRmCmd removes templates.
type templateRmCmd struct {
	Template []string `arg:"" help:"Names." complete:"template"`
}

func (c *templateRmCmd) Help() string { return examples("caisson template rm web") }

func (c *templateRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Template, api.RemoveTemplate)
}
