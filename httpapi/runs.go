package httpapi

import (
	"context"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// runRoutes serves runs.
type runRoutes struct {
	core        caisson.Runs
	idempotency idempotency
	handles     *handleTable
}

// RunRef is the id of a run in a path.
type RunRef struct {
	ID string `path:"id" maxLength:"64" doc:"Id of the run"`
}

// id returns the id in the path; see [idParam].
func (p RunRef) id() (caisson.ID, error) { return parseIDParam(caisson.RunPrefix, "run", p.ID) }

func (h runRoutes) register(rt *router) {
	const tag = "runs"
	start := withCreated(postOp("/runs", "start-run", tag, "Start a run of an agent; it is queued, and continues without the client"))
	start.MaxBodyBytes = protocol.MaxRunRequest
	start.Description = "Over the unix socket a directory can be copied into the workspace: pass its descriptor with POST /handles and its id in " +
		protocol.HandlesHeader + ". To send a workspace, use POST /runs/upload."
	registerRoute(rt, start, h.start)
	h.registerUpload(rt)
	registerRoute(rt, getOp("/runs", "list-runs", tag, "List runs, newest first"), h.list)
	registerRoute(rt, getOp("/runs/{id}", "get-run", tag, "Get a run"), byID[RunRef](h.core.GetRun))
	registerActionRoute(rt, deleteOp("/runs/{id}", "remove-run", tag, "Delete a run that has ended; its calls of models stay in the ledger"),
		removeByID[RunRef](h.core.RemoveRun))
	registerRoute(rt, postOp("/runs/{id}/cancel", "cancel-run", tag, "Cancel a run and its sub-runs"), byID[RunRef](h.core.CancelRun))
	registerRoute(rt, postOp("/runs/{id}/retry", "retry-run", tag, "Start another attempt of a run that has failed"), byID[RunRef](h.core.RetryRun))
	registerStreamRoute(rt, withEventStream(getOp("/runs/{id}/events", "watch-run", tag, "Stream the stored events of a run, then new ones until it ends"),
		"Events named by their type, with a RunEvent each and its seq as id. The stream ends after the last done; one that is interrupted "+
			"before can be continued with Last-Event-ID"), h.watch)
	registerDownloadRoute(rt, getOp("/runs/{id}/log", "get-run-log", tag, "Get the stored log of a stream of a run's last attempt"),
		protocol.BinaryType, "The program's output for stdout and stderr, else lines of JSON", h.log)
}

func (h runRoutes) start(ctx context.Context, in *struct {
	KeyParam
	HandleParam
	Body caisson.RunRequest
},
) (*caisson.Run, error) {
	req := in.Body
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	defer h.handles.closeUntaken(caller.Account, in.Handles) // a repeated request gets the stored answer, and takes no descriptor
	if err := checkLabels(req.Labels); err != nil {
		return nil, err
	}
	switch {
	case req.Kind == caisson.WorkspaceVolume:
		if err := checkVolumeSource("source", req.Source, len(in.Handles)); err != nil {
			return nil, err
		}
	case len(in.Handles) > 1:
		return nil, caisson.Invalidf("source", "one directory can be copied into the workspace, not %d", len(in.Handles))
	case req.Source != "" && !caller.Local:
		return nil, errHostPath()
	case req.Source != "" && len(in.Handles) == 0:
		return nil, caisson.Invalidf("source", "needs the descriptor of the directory; pass it, or upload the workspace")
	}
	return once(ctx, h.idempotency, in.Key, "start-run", req, func() (*caisson.Run, error) {
		dirs, err := h.handles.take(caller.Account, in.Handles)
		if err != nil {
			return nil, err
		}
		if len(dirs) > 0 {
			req.Directory = dirs[0]
		}
		return h.core.StartRun(ctx, req)
	})
}

func (h runRoutes) list(ctx context.Context, in *struct {
	State   []caisson.RunState `query:"state,explode" doc:"Only those in one of these states"`
	Agent   string             `query:"agent" maxLength:"63" doc:"Only of this agent"`
	Session string             `query:"session" doc:"Only of the session with this id"`
	Parent  string             `query:"parent" doc:"Only those that the run with this id has started"`
	Under   string             `query:"under" doc:"Only the run with this id and its sub-runs, at any depth"`
	After   string             `query:"after" doc:"Value of next in the previous page"`
	Limit   int                `query:"limit" minimum:"0" maximum:"1000" doc:"Size of the page; 0 means 100"`
},
) (protocol.Page[*caisson.Run], error) {
	f := caisson.RunFilter{States: in.State, Agent: in.Agent, Limit: in.Limit}
	if err := parseIDs(
		idQuery{"session", caisson.SessionPrefix, in.Session, &f.Session},
		idQuery{"parent", caisson.RunPrefix, in.Parent, &f.Parent},
		idQuery{"under", caisson.RunPrefix, in.Under, &f.Under},
		idQuery{"after", caisson.RunPrefix, in.After, &f.Before},
	); err != nil {
		return protocol.Page[*caisson.Run]{}, err
	}
	page, more, err := h.core.ListRuns(ctx, f)
	return newPage(page, more, runExcerpt, func(r *caisson.Run) caisson.ID { return r.ID }), err
}

// runExcerpt returns r as lists contain it, with long texts cut and the largest fields omitted: a page of a thousand complete
// runs could have gigabytes.
func runExcerpt(r *caisson.Run) *caisson.Run {
	out := *r
	out.Request.Prompt = excerpt(r.Request.Prompt)
	out.Request.History, out.Request.Env, out.Request.Policy, out.Previous = nil, nil, nil, nil
	if r.Result != nil {
		result := *r.Result
		result.Answer = excerpt(result.Answer)
		result.Changes, result.Patch = nil, ""
		out.Result = &result
	}
	return &out
}

// excerpt returns s or, if s is longer than [protocol.MaxExcerpt] bytes, about that many of its first bytes and an ellipsis.
func excerpt(s string) string {
	if len(s) <= protocol.MaxExcerpt {
		return s
	}
	end := protocol.MaxExcerpt
	for end > protocol.MaxExcerpt-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return strings.ToValidUTF8(s[:end], "\uFFFD") + "…"
}

func (h runRoutes) watch(w http.ResponseWriter, r *http.Request, in *struct {
	RunRef
	After  int64 `query:"after" minimum:"0" doc:"Only events with a greater seq"`
	LastID int64 `header:"Last-Event-ID" minimum:"0" doc:"As after, for clients that reconnect"`
},
) error {
	id, err := in.id()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel() // cancel ends the watch when the handler returns
	events, err := h.core.WatchRun(ctx, id, max(in.After, in.LastID))
	if err != nil {
		return err
	}
	return sendRun(r.Context(), newSSEWriter(w), eventEncoder{}, nil, events)
}

// sendRun sends the events of a run, first those in early, until the channel is closed. If ctx ends first, it returns an error,
// so that registerStreamRoute closes the connection and the client does not take the stream for complete.
func sendRun(ctx context.Context, s *sseWriter, say chatEncoder, early []caisson.RunEvent, events <-chan caisson.RunEvent) error {
	if err := s.start(); err != nil {
		return err
	}
	defer s.keepAlive()()
	for _, e := range early {
		if err := say.encode(s, e); err != nil {
			return err
		}
	}
	for e := range events {
		if err := say.encode(s, e); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

func (h runRoutes) log(ctx context.Context, in *struct {
	RunRef
	Stream string `query:"stream" enum:"stdout,stderr,gateway,egress" default:"stdout" doc:"gateway: calls of models; egress: what the run's wire decided"`
},
) (io.ReadCloser, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	return h.core.RunLog(ctx, id, in.Stream)
}
