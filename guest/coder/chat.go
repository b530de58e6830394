package coder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/sse"
)

const (
	maxTries     = 5                // maximum number of tries of one call, including the first
	newTries     = 3                // maximum number of tries if the provider cannot be reached and no earlier call succeeded
	maxWait      = time.Minute      // longest delay between two tries that the gateway may request
	firstWait    = time.Second      // delay after the first try; doubled after each further try
	callTime     = 30 * time.Minute // timeout of one try to call the model
	tailTimeout  = 10 * time.Second // timeout for the end of the stream after the model has ended its answer
	maxContinues = 4                // how often the model is asked to continue an answer that reached its length limit
)

// Texts with which the agent asks the model to continue an incomplete answer.
const (
	msgContinueBroken = "[Your answer broke off here because the connection was lost. Continue exactly where it ended, without repeating anything.]"
	msgContinueLength = "[Your answer was cut at the limit of its length. Continue exactly where it ended, without repeating anything.]"
)

// chat calls a model through the gateway.
type chat struct {
	gateway server                                           // the model gateway
	alias   string                                           // alias of the model
	api     api                                              // API with which the model is called
	tools   []definition                                     // tools that the model may call; nil means none
	out     *output                                          // receives the text of answers
	wait    func(ctx context.Context, d time.Duration) error // waits between two tries; the function pause, except in tests

	answered bool // the gateway has answered a call with success
}

// pause waits for the duration d, or until ctx is done.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// ask returns the model's answer to a conversation, and writes the answer's text to out as it arrives. Failed calls are retried
// if that can help. Text is not repeated: an answer that was interrupted is continued, not started again. The error is the cause
// of ctx's end, the error of a write to out, or of type *failure or *caisson.RunError.
func (c *chat) ask(ctx context.Context, conversation []message, toolsOff bool) (*reply, error) {
	var before strings.Builder // text of the incomplete answers so far
	messages := conversation
	for try, more := 1, 0; ; try++ {
		r, err := c.tryOnce(ctx, messages, toolsOff)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if c.out.err != nil {
			return nil, c.out.err
		}
		text, goOn := r.text.String(), msgContinueBroken
		if before.Len() > 0 {
			whole := before.String() + text
			r.text.Reset()
			r.text.WriteString(whole)
		}
		if err == nil && (r.finish != finishLength || len(r.calls) > 0 || text == "" || more == maxContinues) {
			return r, nil
		}
		if err != nil {
			if err := c.waitRetry(ctx, try, err); err != nil {
				return nil, err
			}
		} else {
			goOn, try = msgContinueLength, 0
			more++
		}
		if text != "" {
			before.WriteString(text)
			if before.Len() > maxAnswer {
				return nil, tooLong()
			}
			messages = append(conversation[:len(conversation):len(conversation)],
				message{Role: roleAssistant, Content: before.String()}, message{Role: roleUser, Content: goOn})
		}
	}
}

// tooLong returns the error of a run in which an answer of the model was longer than permitted.
func tooLong() error {
	return &caisson.RunError{Code: caisson.RunAgentError, Message: "the model's answer is longer than any that is of use; the run ends here"}
}

// waitRetry waits before the next try of a call that failed with err at this try, counted from 1. It returns an error if the call
// must not be tried again, or if ctx ends.
func (c *chat) waitRetry(ctx context.Context, try int, err error) error {
	f, refused := errors.AsType[*failure](err)
	wait := firstWait<<(try-1) + time.Duration(rand.Int64N(int64(firstWait/4))) // with jitter against simultaneous retries
	switch {
	case errors.Is(err, errTooLong):
		return tooLong()
	case refused && !f.retryable() || refused && f.contextTooLong():
		return f
	case refused && (try == maxTries || f.retry > maxWait), refused && f.status == http.StatusBadGateway && !c.answered && try == newTries:
		return f
	case try == maxTries:
		return &caisson.RunError{Code: caisson.RunInternal, Message: fmt.Sprintf("the model gateway cannot be used, after %d attempts: %v", try, err)}
	case refused && f.retry > 0:
		wait = f.retry
	}
	why := "The connection to the model broke"
	if refused {
		why = fmt.Sprintf("The model gateway answered %d", f.status)
	}
	c.out.status("warning", fmt.Sprintf("%s; trying again in %v.", why, wait.Round(100*time.Millisecond)))
	return c.wait(ctx, wait)
}

// tryOnce makes one call of the model. The reply is never nil; with an error it contains the part of the answer that arrived.
func (c *chat) tryOnce(ctx context.Context, messages []message, toolsOff bool) (*reply, error) {
	r := &reply{}
	// The definitions of the tools are sent even if toolsOff is set, because tool calls in the conversation refer to them.
	path, header, req := c.api.request(&modelRequest{model: c.alias, talk: messages, tools: c.tools, toolsOff: toolsOff})
	body, err := encode(req)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, callTime, errors.New("the model took too long"))
	defer cancel()
	res, err := c.gateway.do(ctx, "POST", path, body, header)
	if err != nil {
		return r, err
	}
	defer res.Body.Close()
	if res.StatusCode != 200 {
		return r, readFailure(res)
	}
	c.answered = true
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		err = c.readWhole(r, res.Body)
	} else {
		err = c.readStream(r, res.Body, cancel)
	}
	if err == nil {
		err = r.checkEmpty()
	}
	// The usage is counted even if the answer is incomplete, because it is charged.
	if r.usage != nil {
		c.out.addUsage(*r.usage)
	} else if err == nil {
		c.out.addUsage(caisson.TokenCount{})
	}
	return r, err
}

// newEvents returns a reader of the events in r. The end of r also ends the last event.
func newEvents(r io.Reader) *sse.Reader {
	return sse.NewReader(io.MultiReader(r, strings.NewReader("\n\n")), maxEvent)
}

// readStream reads a streamed answer and writes its text to out as it arrives. If the stream has not ended tailTimeout after the
// model's answer, it calls end, which must make reading the body fail.
func (c *chat) readStream(r *reply, body io.Reader, end func()) error {
	e := newEvents(&bounded{body, maxStream + 1})
	thinking := false
	var tail *time.Timer
	for {
		event, err := e.Next()
		switch {
		case err == nil:
		case errors.Is(err, errTooLong), errors.Is(err, sse.ErrTooLong):
			return errTooLong
		case r.finish != "":
			return nil // the model has ended its answer; errors of the stream after that are ignored
		case err == io.EOF:
			return fmt.Errorf("%w: the answer broke off", errNetwork)
		default:
			return err
		}
		text, err := c.api.add(r, event.Data)
		if err != nil {
			return err
		}
		if r.done {
			return nil
		}
		if !thinking && r.thoughtsSize > 0 {
			thinking = true
			c.out.status("thinking", "")
		}
		c.out.write(text)
		if r.finish != "" && tail == nil {
			tail = time.AfterFunc(tailTimeout, end)
			defer tail.Stop()
		}
		if c.out.err != nil {
			return c.out.err
		}
	}
}

// readWhole reads an answer that was not streamed, although a stream was requested.
func (c *chat) readWhole(r *reply, body io.Reader) error {
	b, err := io.ReadAll(&bounded{body, maxStream + 1})
	if err != nil {
		return err
	}
	text, err := c.api.add(r, b)
	if err != nil {
		return err
	}
	c.out.write(text)
	return nil
}
