package gvisor

import (
	"context"
	"fmt"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// maxSharingReply is the maximum size, in bytes, of a list of programs that may draw the same secrets as another fork: one line
// for each program, with room for a description, and one line for the number of further programs.
const maxSharingReply = (protocol.MaxSharing + 1) * (protocol.MaxSharingName + 100)

// SharedRandomness implements [caisson.RandomnessReporter]: it names the programs that may draw the same secrets as another fork.
func (q sinkQueries) SharedRandomness(ctx context.Context, id caisson.ID) ([]string, error) {
	s, err := q.running(id)
	if err != nil {
		return nil, err
	}
	data, err := querySink(ctx, s, protocol.SharingSink, nil, maxSharingReply)
	if err != nil {
		return nil, fmt.Errorf("read which programs share random state: %w", err)
	}
	if len(data) == 0 {
		return nil, nil
	}
	names := strings.Split(string(data), "\n")
	if len(data) > maxSharingReply || len(names) > protocol.MaxSharing+1 {
		return nil, caisson.Errorf(caisson.Unavailable, "sandbox %s names too many programs that share random state", id)
	}
	for i := range names {
		names[i] = safetext.Escape(names[i])
	}
	return names, nil
}
