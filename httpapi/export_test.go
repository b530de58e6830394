package httpapi

import (
	"net"
	"time"
)

// LimitTo is [Limit] with other limits.
func LimitTo(l net.Listener, strangers, known int, most time.Duration) net.Listener {
	return limitConns(l, connLimits{strangers: strangers, known: known, time: most})
}
