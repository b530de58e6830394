package caisson

import (
	"context"
	"time"
)

// An Event records that something happened to an object; docs/architecture.md lists the types: "sandbox.running",
// "snapshot.created", "command.ended". Data contains no secrets and no output of sandboxes.
type Event struct {
	Seq     int64             `json:"seq" doc:"Increasing sequence number; the cursor for replay"`
	At      time.Time         `json:"at"`
	Account string            `json:"account"`
	Actor   string            `json:"actor,omitempty" doc:"Actor: local, a token's id, a sandbox's id; empty: the daemon itself"`
	Type    string            `json:"type"`
	Subject string            `json:"subject" doc:"ID or name of the object"`
	Data    map[string]string `json:"data,omitempty"` // details; the keys depend on Type
}

// ActorOf returns the Actor of events published with ctx: the id of a guest's sandbox or of a caller's token, "local" for a
// caller over the unix socket and for [DaemonCaller], and "" for the daemon itself.
func ActorOf(ctx context.Context) string {
	if g, err := GuestOf(ctx); err == nil {
		return string(g.Sandbox)
	}
	switch c, err := CallerOf(ctx); {
	case err != nil:
		return ""
	case c.Local || c.Work() != "":
		return "local"
	default:
		return string(c.Token)
	}
}

// Events is the service for reading the record of events.
type Events interface {
	// Watch returns the events of the caller's account after seq, stored ones first, then new ones as they happen,
	// until ctx ends; the channel is then closed. subject "" means every object. Returns NotFound if no
	// stored event is about subject. A slow reader loses no events: they are read from the store again.
	Watch(ctx context.Context, subject string, after int64) (<-chan Event, error)
}

// A Publisher adds events to the record. A failure to store an event is logged, and does not fail the operation.
type Publisher interface {
	// Publish adds an event with the current time and the actor of ctx. It is stored even if ctx has ended.
	Publish(ctx context.Context, account, kind, subject string, data map[string]string)
	// PublishAll adds a list of events in its order, all or none. It sets At, Actor and Seq.
	PublishAll(ctx context.Context, list []*Event)
}

// An AuditReport is the result of verifying the record of events. Every event is chained to the previous one with a
// keyed hash, so that no event can be changed, removed, added or reordered without the key.
type AuditReport struct {
	Events int64  `json:"events" doc:"How many were verified"`
	First  int64  `json:"first" doc:"Seq of the oldest that is kept"`
	Last   int64  `json:"last" doc:"Seq of the newest"`
	Head   string `json:"head" doc:"Seq and hash of the newest, as 17:9f86…; noted elsewhere, it shows later whether the audit log was put back to an earlier one"`
	// Problem describes which event was tampered with and how; empty if none was.
	Problem string `json:"problem,omitempty"`
}

// Audit is the service that verifies the record of events.
type Audit interface {
	// VerifyAudit verifies the whole record; local callers only. head, if not "", is the Head of an earlier report: if the record no
	// longer contains it, the report has a Problem.
	VerifyAudit(ctx context.Context, head string) (*AuditReport, error)
}
