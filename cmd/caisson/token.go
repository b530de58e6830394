package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// tokenCmd contains the commands that manage tokens.
type tokenCmd struct {
	Create tokenCreateCmd `cmd:"" help:"Create a token and print it once."`
	Ls     tokenLsCmd     `cmd:"" help:"List tokens."`
	Rm     tokenRmCmd     `cmd:"" help:"Revoke tokens."`
}

// tokenCreateCmd creates a token.
type tokenCreateCmd struct {
	Name   string           `arg:"" help:"What the token is for."`
	TTL    caisson.Duration `name:"ttl" help:"Expires after this time; default never." placeholder:"DURATION"`
	SSHKey string           `name:"ssh-key" help:"File with a public SSH key; the token has no secret, and lets the key's owner connect over SSH." placeholder:"FILE" complete:"file"`
}

func (c *tokenCreateCmd) Help() string {
	return "The token is for the account of --account, which is made if there is none of that name, and cannot be shown again.\n\n" +
		examples("caisson token create ci --ttl 90d", "caisson token create dashboard --account team-a",
			"caisson token create laptop --ssh-key ~/.ssh/id_ed25519.pub")
}

// newToken is the output of token create with -o json, jsonl or yaml. No other command prints the secret of a token.
type newToken struct {
	*caisson.Token
	Secret string `json:"secret"`
}

func (c *tokenCreateCmd) Run(ctx context.Context, a *app, api api) error {
	account := cmp.Or(a.cfg.Account, caisson.LocalAccount)
	_, err := api.Info(ctx)
	// The daemon refuses all requests for an account that does not exist, except the one that creates a token.
	isNew := caisson.KindOf(err) == caisson.NotFound && caisson.FieldOf(err) == "account"
	if c.SSHKey != "" {
		key, err := readSmall(c.SSHKey)
		if err != nil {
			return localError("sshKey", c.SSHKey, err)
		}
		t, err := api.CreateSSHKey(ctx, account, c.Name, string(key), time.Duration(c.TTL))
		if err != nil {
			return err
		}
		if isNew {
			a.infof("caisson: account %s is new", account)
		}
		return printDone(a, t, string(t.ID))
	}
	t, secret, err := api.CreateToken(ctx, account, c.Name, time.Duration(c.TTL))
	if err != nil {
		return err
	}
	if isNew {
		a.infof("caisson: account %s is new", account)
	}
	if a.globals.Output != "table" {
		return a.encode(newToken{t, secret.Reveal()})
	}
	a.infof("token %s for account %s; it is shown only this once:", t.ID, t.Account)
	_, err = fmt.Fprintln(a.out, secret.Reveal())
	return err
}

// tokenLsCmd lists tokens.
type tokenLsCmd struct{}

func (c *tokenLsCmd) Help() string { return examples("caisson token ls") }

func tokenID(t *caisson.Token) string { return string(t.ID) }

func (c *tokenLsCmd) Run(ctx context.Context, a *app, api api) error {
	list, err := api.ListTokens(ctx)
	if err == nil && a.globals.Output == "table" && a.cfg.Account == "" {
		hintOtherAccounts(ctx, a, api)
	}
	return asList(a, []column[*caisson.Token]{
		{name: "ID", value: tokenID},
		{name: "NAME", value: func(t *caisson.Token) string { return t.Name }},
		{name: "ACCOUNT", value: func(t *caisson.Token) string { return t.Account }},
		{name: "SSH KEY", value: func(t *caisson.Token) string { return t.SSHKey }},
		{name: "AGE", value: func(t *caisson.Token) string { return age(t.CreatedAt) }},
		{name: "EXPIRES IN", value: func(t *caisson.Token) string { return timeUntil(t.ExpiresAt) }},
		{name: "USED", value: func(t *caisson.Token) string { return ago(t.LastUsedAt) }},
	})(list, err)
}

// hintOtherAccounts tells a local caller that the list contains only tokens of the account [caisson.LocalAccount], if there are
// other accounts.
func hintOtherAccounts(ctx context.Context, a *app, api api) {
	st, err := api.Status(ctx) // denied to callers with a token, who have only one account
	if err != nil {
		return
	}
	others := slices.DeleteFunc(st.Accounts, func(name string) bool { return name == caisson.LocalAccount })
	if len(others) > 0 {
		a.infof("caisson: this is account %s; --account shows the tokens of %s", caisson.LocalAccount, strings.Join(others, ", "))
	}
}

// tokenRmCmd removes tokens.
type tokenRmCmd struct {
	Token []string `arg:"" help:"Ids, or names that one token of the account has." complete:"token"`
}

func (c *tokenRmCmd) Help() string {
	return examples("caisson token rm tk-abcdefghijklmnop", "caisson token rm dashboard --account team-a")
}

// findToken returns the id of the account's token with the id ref or, if only one token has that name, with the name ref.
func findToken(ctx context.Context, a *app, api api, ref string) (caisson.ID, error) {
	list, err := api.ListTokens(ctx)
	if err != nil {
		return "", err
	}
	var found []string
	for _, t := range list {
		if string(t.ID) == ref {
			return t.ID, nil
		}
		if t.Name == ref {
			found = append(found, string(t.ID))
		}
	}
	account := "the account of this token"
	if a.overSocket() {
		account = "account " + cmp.Or(a.cfg.Account, caisson.LocalAccount)
	}
	switch len(found) {
	case 1:
		return caisson.ID(found[0]), nil
	case 0:
		return "", caisson.Errorf(caisson.NotFound, "%s has no token %.80q; see caisson token ls, and name another account with --account", account, ref)
	}
	return "", caisson.Errorf(caisson.Conflict, "%d tokens have the name %.80q; give one of the ids %s", len(found), ref, strings.Join(found, ", "))
}

func (c *tokenRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Token, func(ctx context.Context, ref string) error {
		id, err := findToken(ctx, a, api, ref)
		if err != nil {
			return err
		}
		return api.RemoveToken(ctx, id)
	})
}
