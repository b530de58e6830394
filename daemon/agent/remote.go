package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/caisson-dev/caisson"
)

// maxStepTime is the longest timeout of a setup step in an agent that a caller with a token stores.
const maxStepTime = 30 * time.Minute

// checkRemote checks the restrictions on agents that callers with a token store. It returns joined Denied errors.
func (c *Catalog) checkRemote(a *caisson.Agent) error {
	var faults []error
	deny := func(field, format string, args ...any) {
		faults = append(faults, &caisson.Error{Kind: caisson.Denied, Field: field, Msg: fmt.Sprintf(format, args...)})
	}
	if isPath(a.Image) {
		deny("image", "paths of the host are accepted only over the unix socket")
	}
	for i, s := range a.Setup {
		if time.Duration(s.Timeout) > maxStepTime {
			deny(fmt.Sprintf("setup[%d].timeout", i), "is more than %s, the most that can be requested over a token", caisson.Duration(maxStepTime))
		}
	}
	if a.Warm != nil && a.Warm.Randomness == randomnessOpenSSL && a.Driver != caisson.DriverOpenClaw {
		// Whether forks of a snapshot with a service other than OpenClaw draw different random numbers is not tested.
		deny("warm.randomness", "openssl over a token is for driver openclaw only; leave warm out, or set it over the unix socket")
	}
	_, err := narrowLimits(completeLimits(caisson.AgentLimits{}, c.config.MaxLimits), a.Limits, false)
	return errors.Join(append(faults, err)...)
}
