package main

import (
	"context"
	"strconv"

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
	Session []string `arg:"" help:"Ids of sessions." complete:"session"`
}

func (c *sessionRmCmd) Help() string { return examples("caisson session rm se-abcdefghijklmnop") }

func (c *sessionRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Session, func(ctx context.Context, ref string) error {
		id, err := caisson.ParseID(caisson.SessionPrefix, ref)
		if err != nil {
			return caisson.Invalidf("session", "%.40q is not the id of a session; see caisson session ls", ref)
		}
		return api.RemoveSession(ctx, id)
	})
}
