package httpapi

import (
	"net"
	"time"
)

// LimitTo is [Limit] with other limits.
func LimitTo(l net.Listener, strangers, known int, most time.Duration) net.Listener {
	return newListener(l, connLimits{unauthenticated: strangers, authenticated: known, authTimeout: most})
}
