package httpapi

import (
	"strings"

	"github.com/caisson-dev/caisson"
)

// ourLabels begins the keys of labels by which Caisson finds its own objects. Cores set them; requests must not.
const ourLabels = "caisson/"

// checkLabels refuses labels of a request that could make its object look like one of Caisson's own.
func checkLabels(labels map[string]string) error {
	for k := range labels {
		if strings.HasPrefix(k, ourLabels) {
			return caisson.Invalidf("labels", "%.80q begins with %s, as only Caisson's own do; choose another", k, ourLabels)
		}
	}
	return nil
}
