package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/drive"
	"github.com/caisson-dev/caisson/guest/task"
)

const (
	maxAnswer     = 32 << 20 // maximum size of OpenClaw's output, in bytes
	maxCandidates = 100      // maximum number of lines beginning with "{" that are tried as the beginning of the JSON object
)

// runOnce starts OpenClaw for one turn. OpenClaw prints the answer at the end, so it is not streamed.
func runOnce(ctx context.Context, t *task.Task, out drive.Out) (drive.TurnResult, error) {
	if len(t.Command) == 0 {
		return drive.TurnResult{Error: newError(caisson.RunInvalid, "there is neither a gateway of OpenClaw's nor a command that starts OpenClaw")}, nil
	}
	withHistory := *t
	withHistory.Prompt = promptWithHistory(t)
	argv, stdin, remove, err := drive.CommandWithPrompt(&withHistory)
	defer remove()
	if err != nil {
		return drive.TurnResult{Error: newError(caisson.RunInvalid, err.Error())}, nil
	}
	p, err := drive.Start(t, argv, stdin != "")
	if err != nil {
		return drive.TurnResult{Error: newError(caisson.RunAgentError, "OpenClaw does not start: "+err.Error())}, nil
	}
	defer p.Close()
	out.Mark(task.MarkStarted)
	if stdin != "" {
		go func() {
			// An error is ignored, because a program may exit without reading all of its input.
			_, _ = io.WriteString(p.Stdin, stdin)
			p.Stdin.Close()
		}()
	}
	out.Mark(task.MarkPrompt)
	var stdout []byte
	tail := p.Output(ctx, out, time.Duration(t.Grace), nil, func(r io.Reader) {
		stdout, _ = io.ReadAll(io.LimitReader(r, maxAnswer+1))
		_, _ = io.Copy(io.Discard, r) // read the rest, so that the program does not block on a full pipe
	})
	end := drive.TurnResult{Exit: p.Exit()}
	switch {
	case ctx.Err() != nil:
		end.Error = contextError(ctx)
	case len(stdout) > maxAnswer:
		end.Error = newError(caisson.RunAgentError, fmt.Sprintf("OpenClaw printed more than %d bytes", maxAnswer))
	default:
		end.Error = parseOutput(stdout, end.Exit, tail, out)
	}
	return end, nil
}

// parseOutput writes the answer in OpenClaw's output b to out, or returns the error of the turn. An answer is used only if the
// exit code is 0. tail is the end of OpenClaw's standard error.
func parseOutput(b []byte, exit *caisson.ExitStatus, tail string, out drive.Out) *caisson.RunError {
	e, err := parseEnvelope(findEnvelope(b))
	if err != nil {
		if !exit.Success() {
			return newError(caisson.RunAgentError, strings.TrimSuffix(fmt.Sprintf("OpenClaw ended with exit code %d and no answer: %s", exit.Code, tail), ": "))
		}
		return newError(caisson.RunAgentError, err.Error())
	}
	v := e.interpret()
	if v.usage != nil {
		out.Usage(*v.usage)
	}
	switch {
	case v.err != nil:
		return v.err
	case !exit.Success():
		return newError(caisson.RunAgentError, fmt.Sprintf("OpenClaw gave an answer and then ended with exit code %d", exit.Code))
	}
	out.Text(v.answer)
	for _, w := range v.warnings {
		out.Status("warning", firstLine(w))
	}
	return nil
}

// findEnvelope returns the JSON object at the end of OpenClaw's output, because some versions print other lines before it.
func findEnvelope(b []byte) []byte {
	b = bytes.TrimSpace(b)
	if json.Valid(b) {
		return b
	}
	rest := b
	for range maxCandidates {
		i := bytes.Index(rest, []byte("\n{"))
		if i < 0 {
			return b
		}
		rest = rest[i+1:]
		if json.Valid(rest) {
			return rest
		}
	}
	return b
}
