package gate

import (
	"github.com/caisson-dev/caisson"
)

// A Difference is a change, with what it takes to apply it.
type Difference struct {
	Change caisson.Change `json:"change"`
	// Steps apply the change to the host as it was when the change was found: one, or two for a rename. Their contents are
	// objects of the frozen copy. Empty if the change can never be applied as it is. A step needs the directory that it is in:
	// whoever applies a part of the changes takes those of the directories above along.
	Steps []Step `json:"steps,omitempty"`
}
