package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/credential"
)

// credentialImportCmd stores the variables of an environment file, or of the environment, as credentials.
type credentialImportCmd struct {
	File    string `arg:"" optional:"" help:"Environment file, such as .env; - for standard input." complete:"file"`
	Env     bool   `help:"Import from the environment instead."`
	All     bool   `help:"Import every variable of the file, not only those with known names."`
	Replace bool   `help:"Replace the values of existing credentials."`
}

func (c *credentialImportCmd) Help() string {
	names := "Known names:\n"
	for _, k := range credential.Known() {
		names += fmt.Sprintf("\n    %-26s %s", k.Name, k.Kind)
	}
	return `A file has lines of NAME=VALUE. Nothing in it is interpolated, and what programs read in different ways is refused: put such
values in single quotes. A name that is set twice is not taken. The file itself is left as it is: remove it afterwards.

` + names + "\n\n" + examples("caisson credential import ~/.openclaw/.env", "caisson credential import --env --replace",
		"sops -d secrets.env | caisson credential import --all -")
}

// importResult is the result for one variable of an import.
type importResult struct {
	Name   string `json:"name"`             // name of the variable
	Kind   string `json:"kind,omitempty"`   // what a known variable is for, such as "OpenAI API key"; "" for others
	Result string `json:"result"`           // taken (stored as a new credential), replaced, exists, skipped or failed
	Reason string `json:"reason,omitempty"` // why the variable was not imported; "" if it was
}

func (c *credentialImportCmd) Run(ctx context.Context, a *app, vars []credential.Variable, api api) error {
	there, err := api.ListCredentials(ctx)
	if err != nil {
		return err
	}
	twice := map[string]bool{}
	for _, v := range vars {
		twice[v.Name] = twice[v.Name] || v.PreviousLine > 0
	}
	var report []importResult
	var errs []error
	for _, v := range vars {
		r := importResult{Name: v.Name, Kind: credential.Kind(v.Name)}
		exists := slices.ContainsFunc(there, func(c *caisson.Credential) bool { return c.Name == v.Name })
		if r.Result, r.Reason = c.skipReason(v, twice[v.Name], exists); r.Result == "" {
			if exists {
				r.Result = "replaced"
				_, err = api.RotateCredential(ctx, v.Name, v.Value)
			} else {
				r.Result = "taken"
				_, err = api.SetCredential(ctx, v.Name, v.Value)
			}
			if err != nil {
				r.Result, r.Reason = "failed", newErrorReport(err).Message
				errs = append(errs, err)
			}
		}
		report = append(report, r)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(append([]error{printImported(a, report)}, errs...)...)
}

// skipReason returns the result and the reason for a variable that must not be imported, or empty strings if it is to be
// imported. twice means that several lines of the file set the variable, exists that there is a credential of this name.
func (c *credentialImportCmd) skipReason(v credential.Variable, twice, exists bool) (result, reason string) {
	switch {
	case credential.Kind(v.Name) == "" && !c.All:
		return "skipped", "not a known name; --all takes it"
	case v.PreviousLine > 0:
		return "skipped", fmt.Sprintf("line %d sets it again, after line %d; remove one", v.Line, v.PreviousLine)
	case twice:
		return "skipped", fmt.Sprintf("line %d sets it, and a later line again; remove one", v.Line)
	case v.Value.IsZero():
		return "skipped", "is empty"
	case exists && !c.Replace:
		return "exists", "--replace replaces its value"
	}
	if err := errors.Join(credential.CheckName(v.Name), credential.CheckValue(v.Value)); err != nil {
		return "skipped", caisson.MessageOf(err)
	}
	return "", ""
}

// ProvideVariables reads the variables from the file or the environment.
func (c *credentialImportCmd) ProvideVariables(a *app) ([]credential.Variable, error) {
	switch {
	case c.Env && c.File != "" || !c.Env && c.File == "":
		return nil, usagef("credential import", "give a file (- for standard input), or --env")
	case c.Env && c.All:
		return nil, usagef("credential import", "--all is for files: the environment has much that is no credential")
	case c.Env:
		var vars []credential.Variable
		for _, k := range credential.Known() {
			if v := caisson.NewSecret(a.getenv(k.Name)); !v.IsZero() {
				vars = append(vars, credential.Variable{Name: k.Name, Value: v})
			}
		}
		return vars, nil
	}
	data, err := a.readInput(c.File)
	if err != nil {
		return nil, err
	}
	defer clear(data)
	return credential.ParseEnv(bytes.NewReader(data))
}

// printImported prints the results of an import; with --quiet only of the variables that were imported.
func printImported(a *app, report []importResult) error {
	if len(report) == 0 {
		a.infof("nothing to import was found")
	}
	taken := slices.DeleteFunc(slices.Clone(report), func(r importResult) bool { return r.Result != "taken" && r.Result != "replaced" })
	if a.globals.Quiet {
		report = taken
	}
	return printList(a, report, []column[importResult]{
		{name: "VARIABLE", value: func(r importResult) string { return r.Name }},
		{name: "RESULT", value: func(r importResult) string { return r.Result }},
		{name: "KIND", value: func(r importResult) string { return r.Kind }},
		{name: "REASON", value: func(r importResult) string { return r.Reason }},
	})
}
