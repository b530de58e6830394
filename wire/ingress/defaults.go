package ingress

import (
	"time"

	"github.com/caisson-dev/caisson"
)

// Defaults of a route.
const (
	defaultTimeout     = time.Minute      // time until the answer begins
	defaultIdleTimeout = 10 * time.Minute // time without traffic, after which a request ends
	defaultMaxBody     = 256 << 20        // bytes of the body of a request
	defaultRate        = 200              // requests per second of one client
	defaultBurst       = 1000             // requests of one client at once
	defaultMaxRequests = 256              // requests of all clients in progress
	defaultMaxClient   = 64               // requests of one client in progress
)

// withDefaults returns s with the defaults in place of zero values.
func withDefaults(s caisson.RouteSpec) caisson.RouteSpec {
	orDefault(&s.Timeout, caisson.Duration(defaultTimeout))
	orDefault(&s.IdleTimeout, caisson.Duration(defaultIdleTimeout))
	orDefault(&s.MaxBody, defaultMaxBody)
	orDefault(&s.Limits.MaxRequests, defaultMaxRequests)
	orDefault(&s.Limits.MaxClient, defaultMaxClient)
	if s.Limits.Client == (caisson.RouteRate{}) {
		s.Limits.Client = caisson.RouteRate{PerSecond: defaultRate, Burst: defaultBurst}
	}
	return s
}

// orDefault sets *v to value if *v is the zero value.
func orDefault[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}
