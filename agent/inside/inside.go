// Package inside is the built-in agent: a small coding agent that runs inside the sandbox of any image and needs nothing there but the
// wire. It asks the model gateway what to do, does it with a few tools of its own, and says what happens as lines of JSON.
//
// Each line is a [caisson.RunEvent] without what the engine fills in. Text comes in text_delta, with a call of a tool between two messages;
// assistant_final has the last message, and usage_report what all calls of the model so far have used. The last line is assistant_final or
// error.
//
// It has no more rights than any other program in the sandbox, holds no key, and bounds what it reads: a model, a repository or a command
// may be hostile or broken. It calls a model in the API of OpenAI, Anthropic or Gemini, whichever the model speaks.
package inside

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/caisson-dev/caisson"
)

// defaultGateway is where a sandbox finds the model gateway.
const defaultGateway = "http://llm.caisson.internal"

// The variables by which a run says what its agent may use. Flags go before them.
const (
	envToolsURL = "CAISSON_TOOLS_URL" // where runs of other agents are started; not set: nowhere
	envAllow    = "CAISSON_TOOLS_ALLOW"
	envDeny     = "CAISSON_TOOLS_DENY"
	envAPI      = "CAISSON_MODEL_API"
)

const (
	defaultSteps   = 60
	defaultContext = 120_000 // tokens; a model that has fewer says so, and is then asked with fewer
	maxPrompt      = 2 << 20 // bytes
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // the last line says why
	exitUsage  = 2
)

const usage = `usage: caisson-agent code --model ALIAS [options] < PROMPT

Works on a task and prints what happens as a line of JSON for each event.

`

// config is what the command line says.
type config struct {
	model     string
	api       string // "" for OpenAI's
	session   string
	state     string
	steps     int
	context   int64
	workspace string
	gateway   string
	allow     string
	deny      string
	toolsURL  string // "" for none
}

// Main is the agent as a program: it does the task that stdin says, as args without the program's name have it, and returns its exit code.
// SIGTERM and SIGINT end the task, in good order.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	c, err := parseArgs(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	out := newOutput(stdout)
	if err != nil {
		fmt.Fprintln(stderr, "caisson-agent code:", err)
		out.fail(&caisson.RunError{Code: caisson.RunInvalid, Message: err.Error()})
		return exitUsage
	}
	a, err := newAgent(c, out)
	if err == nil {
		err = a.run(ctx, stdin)
		a.close()
	}
	if err != nil {
		why := runError(ctx, err)
		fmt.Fprintln(stderr, "caisson-agent code:", why)
		out.fail(why)
		return exitFailed
	}
	return exitOK
}

func parseArgs(args []string, stderr io.Writer) (*config, error) {
	c := &config{}
	f := flag.NewFlagSet("caisson-agent code", flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are printed once, by Main
	f.Usage = func() {}
	f.StringVar(&c.model, "model", "", "`alias` of the model at the gateway (required)")
	f.StringVar(&c.api, "api", os.Getenv(envAPI), "`API` in which the model is called: openai, anthropic or gemini; openai if empty; default $"+envAPI)
	f.StringVar(&c.session, "session", "", "`id` of the conversation to begin or continue; needs --state")
	f.StringVar(&c.state, "state", "", "`directory` that keeps conversations")
	f.IntVar(&c.steps, "steps", defaultSteps, "how `many` answers with calls of tools the model may give")
	f.Int64Var(&c.context, "context", defaultContext, "`tokens` of conversation that the model is asked with at most")
	f.StringVar(&c.workspace, "workspace", ".", "`directory` to work in")
	f.StringVar(&c.gateway, "gateway", defaultGateway, "`URL` of the model gateway, without the API's path")
	f.StringVar(&c.allow, "allow", os.Getenv(envAllow), "`tools` that the model has, with commas between; all if empty; default $"+envAllow)
	f.StringVar(&c.deny, "deny", os.Getenv(envDeny), "`tools` that the model does not have; default $"+envDeny)
	f.StringVar(&c.toolsURL, "tools-url", os.Getenv(envToolsURL), "`URL` of the tools that start runs of other agents; none if empty; default $"+envToolsURL)
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			io.WriteString(stderr, usage)
			f.SetOutput(stderr)
			f.PrintDefaults()
		}
		return nil, err
	}
	return c, c.check(f.Args())
}

func (c *config) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("%.40q is not understood: the prompt is read from the standard input", rest[0])
	case c.model == "":
		return errors.New("--model is missing: name an alias that the gateway has")
	case c.steps < 1 || c.steps > 10_000:
		return fmt.Errorf("--steps %d is not from 1 to 10000", c.steps)
	case c.context < 1000:
		return fmt.Errorf("--context %d is less than 1000 tokens", c.context)
	case c.session != "" && c.state == "":
		return errors.New("--session needs --state, the directory that keeps conversations")
	case !sessionID(c.session):
		return fmt.Errorf("--session %.40q has more than 512 characters, or others than letters, digits and . _ : -", c.session)
	}
	dir, err := filepath.Abs(c.workspace)
	if err == nil {
		var at os.FileInfo
		if at, err = os.Stat(dir); err == nil && !at.IsDir() {
			err = errors.New("it is no directory")
		}
	}
	if err != nil {
		return fmt.Errorf("--workspace %.200q cannot be worked in: %w", c.workspace, err)
	}
	c.workspace = dir
	return nil
}

// readPrompt reads the task.
func readPrompt(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxPrompt+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("read the prompt: %w", err)
	case len(b) > maxPrompt:
		return "", &caisson.RunError{Code: caisson.RunInvalid, Message: "the prompt has more than 2 MiB; put it into a file and name that"}
	}
	prompt := strings.TrimSpace(clean(string(b)))
	if prompt == "" {
		return "", &caisson.RunError{Code: caisson.RunInvalid, Message: "the prompt is empty; say on the standard input what is to be done"}
	}
	return prompt, nil
}

// runError returns why a task ended.
func runError(ctx context.Context, err error) *caisson.RunError {
	if ctx.Err() != nil {
		return &caisson.RunError{Code: caisson.RunAborted, Message: "ended by a signal"}
	}
	if e, ok := errors.AsType[*caisson.RunError](err); ok {
		return e
	}
	return &caisson.RunError{Code: caisson.RunInternal, Message: err.Error()}
}
