package forge

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/worker"
)

// Names of the jobs, and the time limit of one job.
const (
	jobPull  = "forge.pull"
	jobToken = "forge.token"
	jobTime  = 2 * time.Minute
)

// Jobs returns the jobs of this package, for the table that the binary passes to [worker.Main].
func Jobs() []worker.Job {
	return []worker.Job{{Name: jobPull, Run: runPull}, {Name: jobToken, Run: runToken}}
}

// jobArgs are the arguments of a job. They contain the secret, which is a token or an App's private key, and are sent over a
// pipe only.
type jobArgs struct {
	Forge        caisson.Forge
	API          string
	Project      string
	Secret       string
	Roots        string
	Local        bool
	Own          reach.Host
	Pull         PullRequest
	App          string
	Installation int64
}

type pullAnswer struct {
	Pull    Pull
	Failure *failure
}

type tokenAnswer struct {
	Token   string
	Expires time.Time
	Failure *failure
}

func runPull(ctx context.Context, c *worker.Call) (any, error) {
	var args jobArgs
	if err := c.Args(&args); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, jobTime)
	defer cancel()
	pull, err := openPull(ctx, args)
	if err != nil {
		return pullAnswer{Failure: failureOf(err, hostOf(args.API), secretsOf(args.Secret)...)}, nil
	}
	pull.URL = excerptURL(pull.URL)
	return pullAnswer{Pull: *pull}, nil
}

func runToken(ctx context.Context, c *worker.Call) (any, error) {
	var args jobArgs
	if err := c.Args(&args); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, jobTime)
	defer cancel()
	token, expires, err := installationToken(ctx, args, time.Now())
	if err != nil {
		return tokenAnswer{Failure: failureOf(err, hostOf(args.API), args.Secret)}, nil
	}
	return tokenAnswer{Token: token, Expires: expires}, nil
}

// excerptURL returns "" if s is too long, so that an answer is bounded.
func excerptURL(s string) string {
	if len(s) > maxURL {
		return ""
	}
	return s
}

// hostOf returns the host of an API, for messages.
func hostOf(api string) string {
	u, err := parseAPI(api)
	if err != nil {
		return "the forge"
	}
	return u.Host
}
