package forge

import (
	"context"
	"slices"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/reach"
	"github.com/caisson-dev/caisson/job/worker"
)

// jobTime is the time limit of all requests of one job together.
const jobTime = 2 * time.Minute

// jobLimits are the limits of each job. Time is longer than jobTime, so that jobTime expires first and the job can return an
// error.
var jobLimits = worker.Limits{Time: jobTime + 30*time.Second, CPU: time.Minute, Memory: 512 << 20, FileSize: 1 << 20}

// Jobs returns all jobs of this package, for the table that the binary gives to [worker.Main].
func Jobs() []worker.Declared { return []worker.Declared{jobPull, jobToken} }

// jobArgs are the arguments of a job. They contain the secret, which is a token or an App's private key, and are sent over a
// pipe only.
type jobArgs struct {
	Forge        caisson.Forge // kind of the forge
	API          string        // base URL of the REST API; see Server.API
	Project      string        // owner/name of the project; see Server.Project
	Secret       string        // token, user:password, or private key of an App
	Roots        string        // certificates to trust in addition to the host's, as PEM
	Local        bool          // whether the server may be at any address; see Server.Local
	Own          reach.Host    // addresses of this host, at which the server must not be unless Local is set
	Pull         PullRequest   // the pull request to find or create, for jobPull
	App          string        // id of the App, for jobToken
	Installation int64         // id of the App's installation, for jobToken; 0 means that it is looked up
}

// pullAnswer is the reply of jobPull. Pull is valid if Failure is nil.
type pullAnswer struct {
	Pull    Pull     // the pull request that was found or created
	Failure *failure // why the job failed; nil if it did not
}

// tokenAnswer is the reply of jobToken. Token and Expires are valid if Failure is nil.
type tokenAnswer struct {
	Token   string    // the token of the App
	Expires time.Time // when Token expires
	Failure *failure  // why the job failed; nil if it did not
}

// jobPull finds or creates a pull request. An error is part of its answer, because errors of package worker have no delay before
// a retry.
var jobPull = worker.Job[jobArgs, pullAnswer]{
	Name: "forge.pull", Network: true, Limits: jobLimits,
	Do: func(ctx context.Context, _ *worker.Call, args jobArgs) (pullAnswer, error) {
		ctx, cancel := context.WithTimeout(ctx, jobTime)
		defer cancel()
		pull, err := openPull(ctx, args)
		if err != nil {
			return pullAnswer{Failure: newFailure(err, apiHost(args.API), secretParts(args.Secret)...)}, nil
		}
		pull.URL = dropLongURL(pull.URL)
		return pullAnswer{Pull: *pull}, nil
	},
	Valid: func(_ jobArgs, got *pullAnswer) bool {
		return got.Failure != nil || got.Pull.Number > 0 && slices.Contains([]string{"open", "closed", "merged"}, got.Pull.State)
	},
}

// jobToken requests a token as a GitHub App. An error is part of its answer, because errors of package worker have no delay
// before a retry.
var jobToken = worker.Job[jobArgs, tokenAnswer]{
	Name: "forge.token", Network: true, Limits: jobLimits,
	Do: func(ctx context.Context, _ *worker.Call, args jobArgs) (tokenAnswer, error) {
		ctx, cancel := context.WithTimeout(ctx, jobTime)
		defer cancel()
		token, expires, err := installationToken(ctx, args, time.Now())
		if err != nil {
			return tokenAnswer{Failure: newFailure(err, apiHost(args.API), args.Secret)}, nil
		}
		return tokenAnswer{Token: token, Expires: expires}, nil
	},
	Valid: func(_ jobArgs, got *tokenAnswer) bool {
		return got.Failure != nil || validToken(got.Token) && !got.Expires.Before(time.Now())
	},
}

// dropLongURL returns s, or "" if s is longer than 2,048 bytes, so that an answer of a job is bounded.
func dropLongURL(s string) string {
	if len(s) > maxURL {
		return ""
	}
	return s
}

// apiHost returns the host in the URL of an API, for messages.
func apiHost(api string) string {
	u, err := parseAPI(api)
	if err != nil {
		return "the forge"
	}
	return u.Host
}
