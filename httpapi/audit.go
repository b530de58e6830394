package httpapi

import (
	"context"

	"github.com/caisson-dev/caisson"
)

// auditRoutes serves the verification of the event log.
type auditRoutes struct{ core caisson.Audit }

func (h auditRoutes) register(rt *router) {
	registerRoute(rt, getOp("/audit/verify", "verify-audit", "events",
		"Verify that the event log of all accounts has not been changed (unix socket only)"), localOnly(h.verify))
}

func (h auditRoutes) verify(ctx context.Context, in *struct {
	Head string `query:"head" maxLength:"128" doc:"The head of an earlier report, which must be part of the event log"`
},
) (*caisson.AuditReport, error) {
	return h.core.VerifyAudit(ctx, in.Head)
}
