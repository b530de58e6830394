package forge

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/worker"
)

// Names of the jobs, and how long they take at the most.
const (
	jobPull  = "forge.pull"
	jobToken = "forge.token"
	jobTime  = 2 * time.Minute
)

// Jobs are all jobs of this package, for the table that the binary gives to [worker.Main].
func Jobs() []worker.Job {
	return []worker.Job{{Name: jobPull, Run: runPull}, {Name: jobToken, Run: runToken}}
}

// jobArgs travel over a pipe only, with the secret: a token, or an App's private key.
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

// excerptURL drops what is too long to be shown, so that an answer has a bound.
func excerptURL(s string) string {
	if len(s) > maxURL {
		return ""
	}
	return s
}

// hostOf is for messages.
func hostOf(api string) string {
	u, err := parseAPI(api)
	if err != nil {
		return "the forge"
	}
	return u.Host
}
