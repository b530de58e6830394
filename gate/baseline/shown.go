package baseline

import "slices"

// DefaultShown returns the patterns of names that [NewMask] shows in any case, for others who match names by the same patterns.
func DefaultShown() []string { return slices.Clone(shown) }
