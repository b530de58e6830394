package quarantine

// Constants for tests that build packs.
const (
	PackCommit      = packCommit
	PackBlob        = packBlob
	PackTag         = packTag
	PackOffsetDelta = packOffsetDelta
	PackRefDelta    = packRefDelta
	MaxDeltaChain   = maxDeltaChain
)
