package httpapi

import (
	"net/http"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// eventRoutes serves the event log as a stream.
type eventRoutes struct{ core caisson.Events }

func (h eventRoutes) register(rt *router) {
	registerStreamRoute(rt, withEventStream(getOp("/events", "watch-events", "events", "Stream the stored events, then new ones"),
		"Events named event, with an Event each and its seq as id"), h.watch)
}

func (h eventRoutes) watch(w http.ResponseWriter, r *http.Request, in *struct {
	Subject string `query:"subject" maxLength:"256" doc:"Only events about this id or name"`
	After   int64  `query:"after" minimum:"0" doc:"Only events with a greater seq"`
	LastID  int64  `header:"Last-Event-ID" minimum:"0" doc:"As after, for clients that reconnect"`
},
) error {
	events, err := h.core.Watch(r.Context(), in.Subject, max(in.After, in.LastID))
	if err != nil {
		return err
	}
	return streamEvents(w, r, events, protocol.EventHappened, func(e caisson.Event) int64 { return e.Seq })
}
