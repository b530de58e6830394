package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// sessionCmd contains the commands that list and end sessions.
type sessionCmd struct {
	Ls sessionLsCmd `cmd:"" help:"List conversations."`
	Rm sessionRmCmd `cmd:"" help:"End conversations and delete their sandboxes; their runs are kept."`
}

// sessionLsCmd lists sessions.
type sessionLsCmd struct {
	Agent string `help:"Only with this agent." placeholder:"ID" complete:"agent"`
	User  string `help:"Only of this user." placeholder:"NAME"`
	Key   string `help:"Only with this name, as given with run --session." placeholder:"KEY"`
}

func (c *sessionLsCmd) Help() string {
	return examples("caisson session ls", "caisson session ls --agent openclaw --user ada")
}

func sessionID(s *caisson.Session) string { return string(s.ID) }

func (c *sessionLsCmd) Run(ctx context.Context, a *app, api api) error {
	return asList(a, []column[*caisson.Session]{
		{name: "ID", value: sessionID},
		{name: "AGENT", value: func(s *caisson.Session) string { return s.Agent }},
		{name: "USER", value: func(s *caisson.Session) string { return s.User }},
		{name: "KEY", value: func(s *caisson.Session) string { return s.Key }},
		{name: "RUNS", value: func(s *caisson.Session) string { return strconv.FormatInt(s.Runs, 10) }},
		{name: "ACTIVE RUN", value: func(s *caisson.Session) string { return string(s.Run) }},
		{name: "USED", value: func(s *caisson.Session) string { return age(s.UsedAt) }},
		{name: "SANDBOX", value: func(s *caisson.Session) string { return string(s.Sandbox) }},
	})(api.ListSessions(ctx, caisson.SessionFilter{Agent: c.Agent, User: c.User, Key: c.Key}))
}

// sessionRmCmd removes sessions.
type sessionRmCmd struct {
	Session []string `arg:"" name:"session" help:"Ids of sessions, or their keys, as given with run --session." complete:"session"`
}

func (c *sessionRmCmd) Help() string {
	return examples("caisson session rm ada", "caisson session rm se-abcdefghijklmnop")
}

func (c *sessionRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Session, func(ctx context.Context, ref string) error {
		id, err := caisson.ParseID(caisson.SessionPrefix, ref)
		if err != nil {
			id, err = findSession(ctx, api, ref)
		}
		if err != nil {
			return err
		}
		return api.RemoveSession(ctx, id)
	})
}

// findSession returns the id of the session with the key. It returns an error if no session or several sessions have that key.
func findSession(ctx context.Context, api api, key string) (caisson.ID, error) {
	list, err := api.ListSessions(ctx, caisson.SessionFilter{Key: key})
	switch {
	case err != nil:
		return "", err
	case key == "" || len(list) == 0:
		return "", caisson.Errorf(caisson.NotFound, "there is no session with the id or the key %.80q; see caisson session ls", key)
	case len(list) == 1:
		return list[0].ID, nil
	}
	var which []string
	for _, s := range list {
		which = append(which, fmt.Sprintf("%s of %s", s.ID, s.Agent))
		if s.User != "" {
			which[len(which)-1] += " and user " + s.User
		}
	}
	return "", caisson.Invalidf("session", "%d sessions have the key %.80q; name one by its id: %s", len(list), key, strings.Join(which, ", "))
}
