package credential

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

	"filippo.io/age"

	"github.com/caisson-dev/caisson"
)

// KeyVariable is the environment variable that can hold the key.
const KeyVariable = "CAISSON_CREDENTIAL_KEY"

// KeySource says where the key comes from that values are encrypted with: an age identity, AGE-SECRET-KEY-1…. Exactly one
// field is set.
type KeySource struct {
	// File has the key in the form that age-keygen writes. It is made when the first credential is set.
	File string
	// Value is the key itself; see [TakeKey].
	Value caisson.Secret
	// Command is a program with its arguments that prints the key, such as the client of a key management service. It is
	// started without a shell, with PATH and HOME as its environment, and gets 10 seconds.
	Command []string
}

// TakeKey returns the key in the environment variable CAISSON_CREDENTIAL_KEY, or none, and takes it out of the
// environment, so that no child process inherits it. The kernel's copy of the environment that a process was started
// with, /proc/self/environ, cannot be taken back: root and the user of this process can read it as long as the process
// lives. A file or a command does not have this flaw.
func TakeKey() caisson.Secret {
	key := caisson.NewSecret(strings.TrimSpace(os.Getenv(KeyVariable)))
	_ = os.Unsetenv(KeyVariable) // fails for malformed names only
	return key
}

func (k KeySource) validate() error {
	set := 0
	for _, is := range []bool{k.File != "", !k.Value.IsZero(), len(k.Command) > 0} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return caisson.Invalidf("credentialKey", "the key of credentials comes from a file, from %s or from a command; give exactly one", KeyVariable)
	case len(k.Command) > 0 && k.Command[0] == "":
		return caisson.Invalidf("credentialKey", "the command for the key of credentials is empty")
	}
	return nil
}

// keyring loads the key when it is first needed, and once.
type keyring struct {
	source KeySource
	store  caisson.CredentialStore
	lock   chan struct{}  // holds a token while the key is loaded; a mutex would not obey a context
	loaded caisson.Secret // guarded by lock
}

func newKeyring(source KeySource, store caisson.CredentialStore) *keyring {
	return &keyring{source: source, store: store, lock: make(chan struct{}, 1)}
}

// forOpening returns the key; it must exist.
func (k *keyring) forOpening(ctx context.Context) (*age.X25519Identity, error) {
	return k.get(ctx, false)
}

// forSealing returns the key and makes one if there is none and nothing was encrypted yet.
func (k *keyring) forSealing(ctx context.Context) (*age.X25519Identity, error) {
	return k.get(ctx, true)
}

func (k *keyring) get(ctx context.Context, create bool) (*age.X25519Identity, error) {
	select {
	case k.lock <- struct{}{}:
		defer func() { <-k.lock }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	key := k.loaded
	if key.IsZero() {
		var err error
		if key, err = k.load(ctx, create); err != nil {
			return nil, err
		}
	}
	id, err := parseKey(key, k.source.name())
	if err == nil {
		k.loaded = key // what cannot be used is loaded again next time: somebody may mend it
	}
	return id, err
}

// name says in messages where the key comes from.
func (k KeySource) name() string {
	switch {
	case k.File != "":
		return "the file " + k.File
	case len(k.Command) > 0:
		return "the command " + k.Command[0] // its arguments may be nobody's business
	}
	return KeyVariable
}

func (k *keyring) load(ctx context.Context, create bool) (caisson.Secret, error) {
	switch {
	case len(k.source.Command) > 0:
		return runKeyCommand(ctx, k.source.Command)
	case k.source.File == "":
		return k.source.Value, nil
	}
	text, err := readPrivate(k.source.File)
	if !errors.Is(err, fs.ErrNotExist) {
		return text, err
	}
	// A new key would make everything that the lost one encrypted look damaged, so it is made for the first credential only.
	all, err := k.store.List(ctx, caisson.Everyone())
	if err == nil && len(all) > 0 { // by another vault, perhaps, that has made the file since
		if text, err := readPrivate(k.source.File); !errors.Is(err, fs.ErrNotExist) {
			return text, err
		}
	}
	switch {
	case err != nil:
		return caisson.Secret{}, err
	case len(all) > 0:
		return caisson.Secret{}, caisson.Errorf(caisson.Conflict, "the key of credentials, %s, is missing; put it back from a backup, or remove all %d credentials and set them again", k.source.File, len(all))
	case !create:
		return caisson.Secret{}, caisson.Errorf(caisson.Conflict, "the key of credentials, %s, is missing", k.source.File)
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		return caisson.Secret{}, err
	}
	key := caisson.NewSecret("# Key of Caisson's credentials. Without it they cannot be decrypted; keep a copy elsewhere.\n# public key: " +
		id.Recipient().String() + "\n" + id.String() + "\n")
	return createPrivate(k.source.File, key)
}

// parseKey returns the one identity in a key file's text.
func parseKey(text caisson.Secret, from string) (*age.X25519Identity, error) {
	var found *age.X25519Identity
	lines := bufio.NewScanner(strings.NewReader(text.Reveal()))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, err := age.ParseX25519Identity(line)
		if err != nil || found != nil { // err may quote the line
			return nil, badKey(from)
		}
		found = id
	}
	if lines.Err() != nil || found == nil {
		return nil, badKey(from)
	}
	return found, nil
}

func badKey(from string) error {
	return caisson.Errorf(caisson.Conflict, "%s does not hold the key of credentials; it should be one line AGE-SECRET-KEY-1…, as age-keygen makes", from)
}
