package llm_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
	"github.com/caisson-dev/caisson/internal/steptest"
	"github.com/caisson-dev/caisson/wire/llm"
)

// way contains the steps of a call.
type way struct {
	steptest.Injector
	here  func(step string) // called before the step that the injector disturbs
	begun atomic.Bool       // a reservation was made
}

func (w *way) step(name string) {
	if w.TakeStep(name) != "" {
		w.here(name)
	}
}

// wayMeter is a meter that records its steps.
type wayMeter struct {
	*meter
	way *way
}

func (m wayMeter) Reserve(ctx context.Context, c caisson.Call, d caisson.Demand) (caisson.Reservation, error) {
	m.way.step("reserve")
	if err := ctx.Err(); err != nil {
		return nil, err // like the ledger's meter while it waits
	}
	r, err := m.meter.Reserve(ctx, c, d)
	m.way.begun.Store(true)
	m.way.step("reserved")
	return wayReserved{r, m.way}, err
}

type wayReserved struct {
	caisson.Reservation
	way *way
}

func (r wayReserved) Settle(c caisson.Call) error {
	r.way.step("settle")
	err := r.Reservation.Settle(c)
	r.way.step("settled")
	return err
}

// wayWriter is the guest's response writer; it records its steps.
type wayWriter struct {
	http.ResponseWriter
	way *way
}

func (w wayWriter) Write(p []byte) (int, error) {
	w.way.step("write")
	return w.ResponseWriter.Write(p)
}

func (w wayWriter) Flush() { w.ResponseWriter.(http.Flusher).Flush() }

func (w wayWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// asking wraps the context of a request.
type asking struct{ context.Context }

// TestGoneAnywhere checks a guest that disconnects, or whose sandbox ends, before each step of its call: the call has one row if
// it had begun and none otherwise, and leaves nothing behind.
func TestGoneAnywhere(t *testing.T) {
	t.Parallel()
	var record steptest.Record
	large := `{"model":"small","messages":[{"role":"user","content":"` + strings.Repeat("a", 2<<20) + `"}]}`
	for name, body := range map[string]string{"plain": hello, "stream": `{"stream":true,` + hello[1:], "large": large} {
		for _, ended := range []bool{false, true} {
			if name == "large" && ended {
				continue // parsing is slow
			}
			t.Run(fmt.Sprintf("%s, ended %v", name, ended), func(t *testing.T) {
				for at, more := 1, true; more; at++ {
					if at > 100 {
						t.Fatal("no end of steps")
					}
					more = goneAt(t, at, body, ended, record.Recorder(name))
				}
			})
		}
	}
	record.Check(t)
}

// goneAt makes a call and disconnects before step number at. Returns false if the call had no such step.
func goneAt(t *testing.T, at int, body string, ended bool, record func(steps []string)) bool {
	w := &way{}
	w.Arm(at, "is announced")
	var over atomic.Bool
	var asked atomic.Pointer[asking]
	reached := make(chan string, 1)
	var serving atomic.Int64
	provider := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		serving.Add(1)
		defer serving.Add(-1)
		w.step("arrived")
		new(mock).ServeHTTP(wayWriter{rw, w}, r)
		w.step("answered")
	})
	f := open(t, provider, func(f *fixture) {
		f.config.Meter = wayMeter{f.meter, w}
		dial := f.config.Dial
		f.config.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			w.step("dial")
			return dial(ctx, network, addr)
		}
		f.config.Grant = func(context.Context, caisson.Guest) *caisson.ModelGrant {
			if over.Load() {
				return nil
			}
			return f.grant
		}
		f.config.Timeouts = llm.Timeouts{Linger: patience}
	})
	front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked.Store(&asking{r.Context()})
		w.step("come")
		f.gateway.ServeHTTP(wayWriter{rw, w}, r.WithContext(caisson.WithGuest(r.Context(), *f.guest)))
	}))
	defer front.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.here = func(step string) {
		over.Store(ended)
		reached <- step // first, because the call may end before this function does
		cancel()
		select {
		case <-asked.Load().Done():
		case <-time.After(20 * time.Millisecond): // the server does not notice a disconnect while it does not read
		}
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	req, _ := http.NewRequestWithContext(ctx, "POST", front.URL+"/v1/chat/completions", strings.NewReader(body))
	outcome := "no answer"
	if resp, err := client.Do(req); err == nil {
		body, _ := io.ReadAll(resp.Body) // the body may be incomplete
		outcome = fmt.Sprintf("%s: %.200s", resp.Status, body)
		resp.Body.Close()
	}
	front.Close() // waits for the call
	poll.Until(t, patience, func() bool { return serving.Load() == 0 })
	step := "none"
	select {
	case step = <-reached:
	default:
		if !strings.HasPrefix(outcome, "200 ") {
			t.Errorf("a call that nothing has happened to: %s", outcome)
		}
		_, steps := w.Disarm()
		record(steps)
	}
	poll.Until(t, patience, func() bool { calls, bytes, parses := f.gateway.Held(); return calls == 0 && bytes == 0 && parses == 0 })
	rows := f.meter.rows()
	if begun := w.begun.Load(); !f.meter.quiet() || len(rows) > 1 || begun != (len(rows) == 1) {
		t.Errorf("before step %d, %s: begun %v, %d rows, settled %v", at, step, begun, len(rows), f.meter.quiet())
	}
	return step != "none"
}
