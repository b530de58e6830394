package ingress

import (
	"time"

	"github.com/caisson-dev/caisson"
)

// Defaults of a route.
const (
	defaultTimeout     = time.Minute
	defaultIdleTimeout = 10 * time.Minute
	defaultMaxBody     = 256 << 20
	defaultRate        = 200 // requests per second of one client
	defaultBurst       = 1000
	defaultMaxRequests = 256
	defaultMaxClient   = 64
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
