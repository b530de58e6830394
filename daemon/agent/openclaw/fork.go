package openclaw

import "github.com/caisson-dev/caisson"

// Parameters of the warm-up before a snapshot. WarmPrompt is sent WarmRounds times, each in a new conversation, and the
// scripted model answers from WarmScript. Afterwards everything that a turn needs is loaded and compiled. The first turn takes
// about 20 times as long as the fifth.
const (
	WarmPrompt = "Say that you are ready, after you have made sure that commands run."
	WarmRounds = 6
	WarmScript = `turns:
- when: {tool: exec}
  text: "I am ready."
- when: {last: made sure that commands run}
  text: "I try one."
  calls: [{name: exec, arguments: '{"command": "true"}'}]
fallback: {text: "I am ready."}
`
)

// A ForkChanges contains the changes that the first task in a fork makes before its prompt.
type ForkChanges struct {
	Remove []string           // paths of files to remove
	Files  []caisson.SeedFile // files to write
	Port   int                // port of OpenClaw's gateway
	Secret string             // always "", because OpenClaw's gateway requires no token
}

// Fork returns the changes that the state of OpenClaw in a fork needs, so that no credential from before the fork is valid
// outside of the fork.
//
// OpenClaw creates the following secrets and ids when it starts. None of them needs to be replaced in a fork:
//
//   - A token of OpenClaw's gateway: there is none. That gateway listens only on the loopback interface of its sandbox, which
//     cannot be reached from outside.
//   - The key pair of its device (state database, device_identities): it is valid only for paired devices. No device is paired,
//     and none can be, because there are no channels and no other gateways.
//   - Keys of digests of its configuration (config_revision_keys, config-journal-fingerprint.key): the digests are compared
//     only within the same state directory and are not disclosed.
//   - Ids of the boot, of leases and of the conversations of the warm-up: they grant no access. Ids of connections end with the
//     connections.
//   - Tokens of hooks, of pairing and of devices: hooks are off, and no device is paired.
//
// Identifiers that are created after the fork are unique, because preload.cjs makes Node draw no random numbers in advance.
func Fork() ForkChanges { return ForkChanges{Remove: envFiles(), Port: Port} }
