package main

import (
	"context"
	"fmt"

	"github.com/caisson-dev/caisson"
)

// credentialCmd contains the commands that manage credentials.
type credentialCmd struct {
	Set    credentialSetCmd    `cmd:"" help:"Store a new credential."`
	Rotate credentialRotateCmd `cmd:"" help:"Replace the value of a credential."`
	Import credentialImportCmd `cmd:"" help:"Store the credentials of an environment file, or of the environment."`
	Ls     credentialLsCmd     `cmd:"" help:"List credentials, without their values."`
	Rm     credentialRmCmd     `cmd:"" help:"Remove credentials."`
}

// valueHelp is the help about where the value of a credential comes from; several commands have it in common.
const valueHelp = `The command prompts for the value on the terminal, or reads it from standard input if that is not one; flags name other sources.
The value is never an argument: every user of a machine can see those, and shells keep them. A line end behind it is cut off.

`

// credentialSetCmd stores a new credential.
type credentialSetCmd struct{ credentialValue }

func (c *credentialSetCmd) Help() string {
	return valueHelp + examples("caisson credential set ANTHROPIC_API_KEY", "pass show openai | caisson credential set OPENAI_API_KEY -",
		"caisson credential set GITHUB_TOKEN --command -- gh auth token", "caisson credential set SLACK_BOT_TOKEN --env MY_SLACK_TOKEN",
		"caisson credential set TELEGRAM_BOT_TOKEN --file /run/secrets/telegram")
}

func (c *credentialSetCmd) Run(ctx context.Context, a *app, value caisson.Secret, api api) error {
	return asDone(a, credentialID)(api.SetCredential(ctx, c.Name, value))
}

// credentialRotateCmd replaces the value of an existing credential.
type credentialRotateCmd struct{ credentialValue }

func (c *credentialRotateCmd) Help() string {
	return valueHelp + "Model gateways use the new value at once; sandboxes are not affected.\n\n" +
		examples("caisson credential rotate ANTHROPIC_API_KEY", "caisson credential rotate GITHUB_TOKEN --command -- gh auth token")
}

func (c *credentialRotateCmd) Run(ctx context.Context, a *app, value caisson.Secret, api api) error {
	return asDone(a, credentialID)(api.RotateCredential(ctx, c.Name, value))
}

// credentialID returns the name of a credential, which identifies it.
func credentialID(c *caisson.Credential) string { return c.Name }

// credentialLsCmd lists credentials.
type credentialLsCmd struct{}

func (c *credentialLsCmd) Help() string {
	return examples("caisson credential ls", "caisson credential ls -q")
}

func (c *credentialLsCmd) Run(ctx context.Context, a *app, api api) error {
	return asList(a, []column[*caisson.Credential]{
		{name: "NAME", value: credentialID},
		{name: "KIND", value: func(c *caisson.Credential) string { return c.Kind }},
		{name: "ACCOUNT", value: func(c *caisson.Credential) string { return c.Account }},
		{name: "AGE", value: func(c *caisson.Credential) string { return age(c.CreatedAt) }},
		{name: "ROTATED", value: func(c *caisson.Credential) string { return ago(c.RotatedAt) }},
	})(api.ListCredentials(ctx))
}

// credentialRmCmd removes credentials.
type credentialRmCmd struct {
	Credential []string `arg:"" help:"Names." complete:"credential"`
}

func (c *credentialRmCmd) Help() string { return examples("caisson credential rm OPENAI_API_KEY") }

func (c *credentialRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Credential, api.RemoveCredential)
}

// auditCmd contains the commands that verify the event log and print its head.
type auditCmd struct {
	Verify auditVerifyCmd `cmd:"" help:"Check that the event log has not been changed."`
	Head   auditHeadCmd   `cmd:"" help:"Print the head of the event log, to be stored elsewhere."`
}

// auditVerifyCmd verifies the event log.
type auditVerifyCmd struct {
	Head string `help:"An earlier output of audit head, which the event log must contain." placeholder:"HEAD"`
}

func (c *auditVerifyCmd) Help() string {
	return `Every event is chained to the one before with a keyed hash, so that none can be changed, removed, added or moved without
the key. That the whole record was replaced by an older copy of itself is seen only with --head. The exit code is 4 if
something is wrong.

` + examples("caisson audit verify", `caisson audit verify --head "$(cat /elsewhere/head)"`)
}

func (c *auditVerifyCmd) Run(ctx context.Context, a *app, api api) error {
	r, err := api.VerifyAudit(ctx, c.Head)
	if err != nil {
		return err
	}
	err = printOne(a, r, r.Head, [][2]string{
		{"Events", fmt.Sprint(r.Events)}, {"First", fmt.Sprint(r.First)}, {"Last", fmt.Sprint(r.Last)}, {"Head", r.Head}, {"Problem", r.Problem},
	})
	if err != nil {
		return err
	}
	return tamperError(r)
}

// auditHeadCmd prints the head of the event log: the number and the hash of its newest event.
type auditHeadCmd struct{}

func (c *auditHeadCmd) Help() string {
	return "The event log is verified first.\n\n" + examples("caisson audit head > /elsewhere/head")
}

func (c *auditHeadCmd) Run(ctx context.Context, a *app, api api) error {
	r, err := api.VerifyAudit(ctx, "")
	if err != nil {
		return err
	}
	if err := tamperError(r); err != nil {
		return err
	}
	return printDone(a, r, r.Head)
}

// tamperError returns a Conflict error if r reports that the event log was changed.
func tamperError(r *caisson.AuditReport) error {
	if r.Problem == "" {
		return nil
	}
	return caisson.Errorf(caisson.Conflict, "the audit log was tampered with: %s", r.Problem)
}
