package httpapi

import (
	"strings"

	"github.com/caisson-dev/caisson"
)

// reservedLabelPrefix is the prefix of the keys of labels by which Caisson finds objects that it has created for its own
// purposes. Only cores set such labels; requests must not contain them.
const reservedLabelPrefix = "caisson/"

// checkLabels returns Invalid if a request has labels with the reserved prefix.
func checkLabels(labels map[string]string) error {
	for k := range labels {
		if strings.HasPrefix(k, reservedLabelPrefix) {
			return caisson.Invalidf("labels", "%.80q begins with %s, as only Caisson's own do; choose another", k, reservedLabelPrefix)
		}
	}
	return nil
}
