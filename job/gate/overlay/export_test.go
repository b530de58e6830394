package overlay

// FrozenPack is the name of the pack in a frozen directory, for tests.
const FrozenPack = frozenPack
