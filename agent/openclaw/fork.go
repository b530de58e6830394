package openclaw

import "github.com/caisson-dev/caisson"

// What a warm snapshot is made with: the prompt is asked WarmRounds times, each in a conversation of its own and on a model that follows
// WarmScript, until what a turn needs has been loaded and compiled. The first turn takes some 20 times as long as the fifth.
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

// A Refresh is what the first task in a fork is given, before its prompt.
type Refresh struct {
	Remove []string
	Files  []caisson.SeedFile
	Port   int
	Secret string // of the gateway; "" because it has none
}

// Fork returns what a fork needs so that nothing that was made before it is accepted outside of it.
//
// What OpenClaw has made at boot, and why none of it has to be made anew:
//
//   - A token of the gateway: there is none. It listens on the loopback interface of its sandbox alone, which nobody else reaches.
//   - The key pair of its device (state database, device_identities): it counts where it has been paired, and it has been paired with
//     nothing; nobody could pair it, as there are no channels and no other gateways.
//   - Keys of digests of its configuration (config_revision_keys, config-journal-fingerprint.key): their digests are compared within the
//     same state directory and are shown to nobody.
//   - Ids of the boot, of leases and of the conversations of the warm-up: names, which give no access. Ids of connections end with them.
//   - Tokens of hooks, of pairing and of devices: hooks are off, and nothing is paired.
//
// Identifiers that are made after the fork are the fork's own, see preload.cjs.
func Fork() Refresh { return Refresh{Remove: EnvFiles(), Port: Port} }
