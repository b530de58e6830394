package service

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caisson-dev/caisson"
)

// TestReadyClock tests that a service does not count as not ready in time because the clock has jumped, as that of a sandbox does
// which is resumed after a pause.
func TestReadyClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unit{service: caisson.Service{Readiness: &caisson.Readiness{
			Timeout: caisson.Duration(30 * time.Second), Interval: caisson.Duration(time.Second),
		}}}
		c := u.newClock()
		time.Sleep(5 * time.Second)
		if c.expired() {
			t.Error("expired after 5 of 30 s")
		}
		for i := range 4 { // each jump counts as one check: 6 s
			time.Sleep(24 * time.Hour)
			if c.expired() {
				t.Errorf("expired after jump %d", i+1)
			}
		}
		time.Sleep(time.Second)
		if !c.expired() {
			t.Error("not expired after 30 s")
		}
	})
}
