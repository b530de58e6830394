package client_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/apitest"
)

const aRun = "rn-aaaaaaaaaaaaaaaa"

// eventData writes events from-to, and then ends the stream, or breaks it off within an event.
func eventData(w http.ResponseWriter, from, to int, whole bool) {
	for i := from; i <= to; i++ {
		b, err := json.Marshal(caisson.RunEvent{Seq: int64(i), Type: caisson.EventTextDelta, Delta: strconv.Itoa(i)})
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(w, ":\n\nid: %d\nevent: text_delta\ndata: %s\n\n", i, b)
	}
	if !whole {
		io.WriteString(w, "id: 99\nevent: text_del")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// TestRunEventsSurviveConnections: no event is missed or comes twice, whatever the connections do.
func TestRunEventsSurviveConnections(t *testing.T) {
	var tries atomic.Int64
	c := answer(t, func(w http.ResponseWriter, r *http.Request) {
		after, err := strconv.Atoi(r.URL.Query().Get("after"))
		if err != nil || r.URL.Path != "/api/v1/runs/"+aRun+"/events" {
			t.Errorf("%s: %v", r.URL, err)
		}
		switch tries.Add(1) {
		case 1:
			eventData(w, after+1, 3, false)
		case 2:
			eventData(w, after-1, 5, false) // repeats two
		case 3:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 4:
			eventData(w, after+1, after, false) // nothing new
		default:
			eventData(w, after+1, 7, true)
		}
	})
	events, err := c.WatchRun(t.Context(), aRun, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for e := range events {
		got = append(got, e.Seq)
	}
	if !slices.Equal(got, []int64{1, 2, 3, 4, 5, 6, 7}) {
		t.Error(got)
	}
}

// TestRunEventsEnd: a server that is broken, or has forgotten the run, does not keep its client for ever.
func TestRunEventsEnd(t *testing.T) {
	for name, then := range map[string]http.HandlerFunc{
		"forgotten": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusNotFound) },
		"broken":    func(w http.ResponseWriter, _ *http.Request) { eventData(w, 1, 0, false) },
		"nonsense":  func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "event: x\ndata: {]\n\n") },
	} {
		t.Run(name, func(t *testing.T) {
			var again atomic.Bool
			c := answer(t, func(w http.ResponseWriter, r *http.Request) {
				if again.Swap(true) {
					then(w, r)
					return
				}
				eventData(w, 1, 1, false)
			})
			events, err := c.WatchRun(t.Context(), aRun, 0)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for range events {
				n++
			}
			if n != 1 {
				t.Errorf("%d events", n)
			}
		})
	}
	c := answer(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusForbidden) })
	_, err := c.WatchRun(t.Context(), aRun, 0)
	apitest.Fails(t, err, caisson.Denied, "")
}

// TestWorkspaceIsOneThing: a request with both a directory and an archive is a mistake, and closes what it was given.
func TestWorkspaceIsOneThing(t *testing.T) {
	c := answer(t, func(http.ResponseWriter, *http.Request) { t.Error("asked the server") })
	h := &closes{}
	_, err := c.StartRun(t.Context(), caisson.RunRequest{Agent: "a", Prompt: "x", Directory: h, Workspace: strings.NewReader("x")})
	apitest.Fails(t, err, caisson.Invalid, "workspace")
	if !h.closed {
		t.Error("the directory stays open")
	}
	h = &closes{}
	_, err = c.StartRun(t.Context(), caisson.RunRequest{Agent: "a", Prompt: "x", Directory: h})
	apitest.Fails(t, err, caisson.Denied, "")
	if !h.closed {
		t.Error("the directory stays open")
	}
}

type closes struct{ closed bool }

func (c *closes) Fd() uintptr  { return ^uintptr(0) }
func (c *closes) Close() error { c.closed = true; return nil }
