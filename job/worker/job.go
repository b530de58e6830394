package worker

import (
	"context"
	"encoding/json"
	"io"
	"os"

	"github.com/caisson-dev/caisson"
)

// A Job declares one kind of job once: its name, its confinement, and what it does. A package keeps its jobs in variables, lists
// them for [Main], and runs them with [Job.Run]. Args and Reply cross to and from the job as JSON. Args may hold secrets: they
// are sent over a pipe only.
type Job[Args, Reply any] struct {
	Name     string // unique in the binary, such as "gate.scan"
	Network  bool   // whether the job has the host's network; see Request.Network
	Programs bool   // whether the job may start programs of the host; see Request.Programs
	Access   Access // access of the job to its root directory, RunInput.Root
	Root     bool   // opens the job's root directory as [Call.Root]; not for jobs with programs, whose root is at /work
	Files    int    // minimum number of descriptors in RunInput.Files
	Limits   Limits // used unless [RunInput.Limits] is set
	// Do is called in the job, confined. ctx is never done, because a job is cancelled by killing its process.
	Do func(ctx context.Context, c *Call, args Args) (Reply, error)
	// Valid reports whether a reply, which may be hostile, can be used. It is called in the parent. If nil, every value that
	// decodes strictly into a Reply is valid.
	Valid func(args Args, reply *Reply) bool
}

// None is the type of arguments or replies without content.
type None struct{}

// Value returns *p, or the zero T and err if err is not nil. With it, the field Do of a [Job] can return the results of a
// function that returns a pointer.
func Value[T any](p *T, err error) (T, error) {
	if err != nil {
		var none T
		return none, err
	}
	return *p, nil
}

// RunInput has what a job is given besides its arguments, when it is started.
type RunInput struct {
	Root     *os.File              // root directory of the job; see Request.Root
	Files    []*os.File            // descriptors for the job; see Request.Files
	Input    io.Reader             // input of the job; see Request.Input
	Mounts   []Mount               // further directories for the job; see Request.Mounts
	Limits   Limits                // replaces the limits of the declaration unless it is zero
	Progress func(json.RawMessage) // called with the progress of the job; see Request.Progress
}

// A Starter runs jobs: [*Runner], or its replacement in a test.
type Starter interface {
	// Run runs a job and decodes its reply; see [Runner.Run].
	Run(ctx context.Context, req Request, reply any) error
}

// Run runs the job with s and returns its reply or its error. Errors are Exhausted at a limit, Internal for an invalid reply.
func (j Job[Args, Reply]) Run(ctx context.Context, s Starter, args Args, g RunInput) (Reply, error) {
	if g.Limits == (Limits{}) {
		g.Limits = j.Limits
	}
	var reply, none Reply
	err := s.Run(ctx, Request{
		Job: j.Name, Args: args, Files: g.Files, Input: g.Input, Root: g.Root, Access: j.Access, Network: j.Network,
		Programs: j.Programs, Mounts: g.Mounts, Limits: g.Limits, Progress: g.Progress,
	}, &reply)
	switch {
	case err != nil:
		return none, err
	case j.Valid != nil && !j.Valid(args, &reply):
		return none, caisson.Errorf(caisson.Internal, "the job %s sent an invalid reply", j.Name)
	}
	return reply, nil
}

// Declared is a [Job] with any types of arguments and reply, for the table that is given to [Main].
type Declared interface {
	// name returns the name of the job.
	name() string
	// serve decodes args, calls the field Do of the job, and returns the reply.
	serve(ctx context.Context, c *Call, args json.RawMessage) (any, error)
}

func (j Job[Args, Reply]) name() string { return j.Name }

// serve decodes raw, calls j.Do and returns the reply; an error if the request has fewer descriptors than the job requires.
func (j Job[Args, Reply]) serve(ctx context.Context, c *Call, raw json.RawMessage) (any, error) {
	var args Args
	if err := Unmarshal(raw, &args); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "arguments of a job")
	}
	if len(c.Files) < j.Files {
		return nil, caisson.Errorf(caisson.Internal, "this job was given %d descriptors", len(c.Files))
	}
	if j.Root {
		root, err := os.Open("/")
		if err != nil {
			return nil, err
		}
		defer root.Close()
		c.Root = root
	}
	return j.Do(ctx, c, args)
}
