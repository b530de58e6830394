// Package coder is the built-in coding agent. It runs inside a sandbox of any image and requires only the wire there. It calls
// a model through the model gateway, executes the tool calls that the model requests, and writes events as lines of JSON.
//
// Each line is a [caisson.RunEvent] without the fields that the engine sets. Events of type text_delta contain the model's text;
// between two messages of the model is a tool call. An event assistant_final contains the last message, and a usage_report the
// usage of all model calls so far. The last event is assistant_final or error.
//
// The agent has the rights of any other program in the sandbox and no API key. It bounds its input, because a model, a repository
// or a command may be hostile or broken. It calls a model with the API of OpenAI, Anthropic or Gemini, depending on the model.
package coder

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

// defaultGateway is the URL of the model gateway in a sandbox.
const defaultGateway = "http://llm.caisson.internal"

// Environment variables that configure the agent. Command-line flags take precedence.
const (
	envToolsURL = "CAISSON_TOOLS_URL"   // URL of the server that starts sub-runs; there is no such server if the variable is not set
	envAllow    = "CAISSON_TOOLS_ALLOW" // comma-separated names of the tools that the model can use
	envDeny     = "CAISSON_TOOLS_DENY"  // comma-separated names of tools that the model cannot use
	envAPI      = "CAISSON_MODEL_API"   // name of the model API
)

const (
	defaultSteps   = 60      // default maximum number of answers with tool calls
	defaultContext = 120_000 // default maximum number of tokens that one request sends; fewer after the model has refused a request
	maxPrompt      = 2 << 20 // maximum size of a prompt, in bytes
)

// Exit codes of [Main].
const (
	exitOK     = 0 // the task is done
	exitFailed = 1 // the task has failed; the last line of output contains the error
	exitUsage  = 2 // the command line is invalid
)

const usage = `usage: caisson-agent code --model ALIAS [options] < PROMPT

Works on a task and prints what happens as a line of JSON for each event.

`

// config is the configuration from the command line and the environment.
type config struct {
	model     string // alias of the model
	api       string // name of the model API; "" for OpenAI's
	session   string // id of the conversation; "" for one that is not stored
	state     string // path of the directory in which conversations are stored
	maxSteps  int    // maximum number of answers with tool calls
	maxTokens int64  // maximum number of tokens that one request sends to the model, without the answer
	workspace string // directory to work in; absolute once check has returned
	gateway   string // URL of the model gateway
	allow     string // comma-separated names of the tools that the model can use; "" for all
	deny      string // comma-separated names of tools that the model cannot use
	toolsURL  string // URL of the server that starts sub-runs; "" for none
}

// Main runs the agent as a program: it does the task whose prompt is read from stdin, and returns its exit code. args are the
// arguments without the program's name. SIGTERM and SIGINT cancel the task; the last line then reports the error.
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

// parseArgs parses the command-line arguments. For --help it prints the usage to stderr and returns flag.ErrHelp.
func parseArgs(args []string, stderr io.Writer) (*config, error) {
	c := &config{}
	f := flag.NewFlagSet("caisson-agent code", flag.ContinueOnError)
	f.SetOutput(io.Discard) // Main prints the error; without this it would be printed twice
	f.Usage = func() {}
	f.StringVar(&c.model, "model", "", "`alias` of the model at the gateway (required)")
	f.StringVar(&c.api, "api", os.Getenv(envAPI), "`API` with which the model is called: openai, anthropic or gemini; openai if empty; default $"+envAPI)
	f.StringVar(&c.session, "session", "", "`id` of the conversation to begin or continue; needs --state")
	f.StringVar(&c.state, "state", "", "`directory` in which conversations are stored")
	f.IntVar(&c.maxSteps, "steps", defaultSteps, "how `many` answers with calls of tools the model may give")
	f.Int64Var(&c.maxTokens, "context", defaultContext, "maximum size in `tokens` of the conversation that the model gets")
	f.StringVar(&c.workspace, "workspace", ".", "`directory` to work in")
	f.StringVar(&c.gateway, "gateway", defaultGateway, "`URL` of the model gateway, without the API's path")
	f.StringVar(&c.allow, "allow", os.Getenv(envAllow), "`tools` that the model has, with commas between; all if empty; default $"+envAllow)
	f.StringVar(&c.deny, "deny", os.Getenv(envDeny), "comma-separated `tools` that the model cannot use; default $"+envDeny)
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

// check validates the configuration and makes the path of the workspace absolute. rest are the arguments after the flags.
func (c *config) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %.40q: the prompt is read from standard input", rest[0])
	case c.model == "":
		return errors.New("--model is missing: name an alias that the gateway has")
	case c.maxSteps < 1 || c.maxSteps > 10_000:
		return fmt.Errorf("--steps %d is not from 1 to 10000", c.maxSteps)
	case c.maxTokens < 1000:
		return fmt.Errorf("--context %d is less than 1000 tokens", c.maxTokens)
	case c.session != "" && c.state == "":
		return errors.New("--session needs --state, the directory in which conversations are stored")
	case !validSessionID(c.session):
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
		return fmt.Errorf("--workspace %.200q cannot be used: %w", c.workspace, err)
	}
	c.workspace = dir
	return nil
}

// readPrompt reads the task's prompt from r to the end.
func readPrompt(r io.Reader) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxPrompt+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("read the prompt: %w", err)
	case len(b) > maxPrompt:
		return "", &caisson.RunError{Code: caisson.RunInvalid, Message: "the prompt has more than 2 MiB; write it to a file and refer to the file"}
	}
	prompt := strings.TrimSpace(clean(string(b)))
	if prompt == "" {
		return "", &caisson.RunError{Code: caisson.RunInvalid, Message: "the prompt is empty; write the task to standard input"}
	}
	return prompt, nil
}

// runError converts err, with which a task failed, to the error of a run; it reports the task as aborted if ctx has ended.
func runError(ctx context.Context, err error) *caisson.RunError {
	if ctx.Err() != nil {
		return &caisson.RunError{Code: caisson.RunAborted, Message: "ended by a signal"}
	}
	if e, ok := errors.AsType[*caisson.RunError](err); ok {
		return e
	}
	return &caisson.RunError{Code: caisson.RunInternal, Message: err.Error()}
}
