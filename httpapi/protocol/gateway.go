package protocol

import (
	"time"

	"github.com/caisson-dev/caisson"
)

// GatewayRunRequest is the body of the request that registers a gateway run; the id of the run is in the path.
type GatewayRunRequest struct {
	Attempt   int                `json:"attempt,omitempty" minimum:"0" doc:"Tokens for any other attempt are refused"`
	Account   string             `json:"account,omitempty" maxLength:"32" doc:"The account that is charged; empty: the caller's account. Another account is possible only over the unix socket"`
	Session   string             `json:"session,omitempty" maxLength:"128"` // id of the run's session on its machine
	Agent     string             `json:"agent,omitempty" maxLength:"128"`   // id of the run's agent on its machine
	User      string             `json:"user,omitempty" maxLength:"128" doc:"The account's name for the person on whose behalf the run is made"`
	Models    caisson.ModelGrant `json:"models"`
	ExpiresAt *time.Time         `json:"expiresAt,omitempty" doc:"When the run ends by itself; absent: a day from now"`
}
