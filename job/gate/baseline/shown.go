package baseline

import "slices"

// DefaultShown returns the patterns of names that [NewMask] always shows, for other packages that match names by the same
// patterns.
func DefaultShown() []string { return slices.Clone(shown) }
