package llm_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/wire/llm"
)

// slow begins an answer, and ends it on a signal.
type slow struct {
	begun, end chan struct{}
	stream     bool
}

func (s slow) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	usage := `"usage":{"prompt_tokens":30,"completion_tokens":777,"total_tokens":807}}`
	begin, end := `{"choices":[],`, usage
	if s.stream {
		w.Header().Set("Content-Type", "text/event-stream")
		begin, end = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", `data: {"choices":[],`+usage+"\n\ndata: [DONE]\n\n"
	}
	io.WriteString(w, begin)
	w.(http.Flusher).Flush()
	close(s.begun)
	select {
	case <-s.end:
		io.WriteString(w, end)
	case <-r.Context().Done():
	}
}

// leave makes a call and disconnects once its answer has begun.
func (f *fixture) leave(s slow, body string) {
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "POST", f.front.URL+"/v1/chat/completions", strings.NewReader(body))
	go func() {
		<-s.begun
		cancel()
	}()
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	<-ctx.Done()
}

// TestAbortedIsReadToItsEnd checks that a guest that disconnects is charged the whole answer of the provider.
func TestAbortedIsReadToItsEnd(t *testing.T) {
	for _, stream := range []bool{true, false} {
		s := slow{make(chan struct{}), make(chan struct{}), stream}
		var asked atomic.Int32 // calls of Grant: one for the call, and one after its guest has disconnected
		f := open(t, s, func(f *fixture) {
			f.config.Timeouts.Linger = patience
			f.config.Grant = func(context.Context, caisson.Guest) *caisson.ModelGrant {
				asked.Add(1)
				return f.grant
			}
		})
		f.leave(s, fmt.Sprintf(`{"stream":%v,`, stream)+hello[1:])
		poll.Until(t, patience, func() bool { return asked.Load() > 1 })
		close(s.end)
		poll.Until(t, patience, func() bool { return len(f.meter.rows()) == 1 })
		row := f.row()
		if row.Error != "aborted" || row.Estimated || row.Tokens.Input != 30 || row.Tokens.Output != 777 || row.Cost != prices.Cost(row.Tokens) {
			t.Errorf("stream %v: %+v", stream, row)
		}
	}
}

// TestAbortedWithoutGrant checks that the end of a sandbox does not wait for answers that no guest receives.
func TestAbortedWithoutGrant(t *testing.T) {
	var ended atomic.Bool
	s := slow{make(chan struct{}), make(chan struct{}), true}
	f := open(t, s, func(f *fixture) {
		f.config.Grant = func(context.Context, caisson.Guest) *caisson.ModelGrant {
			if ended.Load() {
				return nil
			}
			return f.grant
		}
		f.config.Timeouts = llm.Timeouts{Linger: 1 << 50}
	})
	f.leave(s, `{"stream":true,`+hello[1:])
	ended.Store(true)
	poll.Until(t, patience, func() bool { return len(f.meter.rows()) == 1 })
	if row := f.row(); row.Error != "aborted" || !row.Estimated || row.Tokens.Output < 1 || row.Tokens.Output > 1000 {
		t.Errorf("%+v", row)
	}
}

// TestNoEndAfterEnd checks that a provider that does not close the stream after its final event does not block the call for long.
func TestNoEndAfterEnd(t *testing.T) {
	var once sync.Once
	gone := make(chan struct{})
	f := open(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n")
		for r.Context().Err() == nil {
			io.WriteString(w, ": ping\n\n")
			w.(http.Flusher).Flush()
		}
		once.Do(func() { close(gone) })
	}))
	f.post("/v1/chat/completions", `{"stream":true,`+hello[1:])
	<-gone
	if row := f.row(); row.Error != "" || row.Tokens.Output != 2 {
		t.Errorf("%+v", row)
	}
}
