package protocol

import (
	"time"

	"github.com/caisson-dev/caisson"
)

// CSVType is the content type of tables as CSV.
const CSVType = "text/csv; charset=utf-8"

// NextHeader is the header of CSV responses that contains the value for the query parameter "after" that selects the next page.
const NextHeader = "X-Caisson-Next"

// BudgetRequest is the body of a request that sets a budget.
type BudgetRequest struct {
	Key     string         `json:"key,omitempty" maxLength:"160" doc:"account/NAME, session/ID, run/ID or sandbox/ID; empty: the caller's account"`
	Account string         `json:"account,omitempty" maxLength:"32" doc:"The account of the run or session; empty: the caller's"`
	Limits  caisson.Limits `json:"limits" doc:"What may be taken; an absent number is not bounded"`
	Period  string         `json:"period,omitempty" enum:"day,month," doc:"Usage counts from the beginning of the UTC day or month; empty: usage is never reset"`
}

// ReconcileRequest is the body of a request to compare the ledger with a provider's spend logs.
type ReconcileRequest struct {
	Provider string    `json:"provider" minLength:"1" maxLength:"128" doc:"Name of a provider of kind litellm"`
	Since    time.Time `json:"since"` // only calls since then are compared
}
