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

// KeyVariable is the environment variable from which [TakeKey] reads the key.
const KeyVariable = "CAISSON_CREDENTIAL_KEY"

// KeySource is the source of the key that encrypts credentials: an age identity, AGE-SECRET-KEY-…. Exactly one field must be set.
type KeySource struct {
	// File is a key file in the format of age-keygen. It is created when the first credential is set.
	File string
	// Value is the key itself, such as the one that [TakeKey] returns.
	Value caisson.Secret
	// Command is a program with its arguments that prints the key, such as the client of a key management service. It is started
	// without a shell, with only PATH, HOME and LANG in its environment, and killed after 10 seconds.
	Command []string
}

// TakeKey returns the key in the environment variable CAISSON_CREDENTIAL_KEY, or the zero Secret, and removes the variable from
// the environment, so that child processes do not inherit it. The kernel's copy of the initial environment, /proc/self/environ,
// cannot be changed: root and the user of this process can read it while the process runs. A file or a command does not have this
// weakness.
func TakeKey() caisson.Secret {
	key := caisson.NewSecret(strings.TrimSpace(os.Getenv(KeyVariable)))
	_ = os.Unsetenv(KeyVariable) // fails only for malformed names
	return key
}

// validate returns an Invalid error unless exactly one field is set.
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

// keyring loads the key when it is first used, and caches it.
type keyring struct {
	source KeySource // where the key is loaded from
	store  caisson.CredentialStore
	lock   chan struct{}  // full while a call loads the key; a channel, so that a context can cancel waiting for it
	loaded caisson.Secret // the loaded key; zero until one was loaded that can be parsed; guarded by lock
}

// newKeyring returns a keyring for the key from a source, without loading the key.
func newKeyring(source KeySource, store caisson.CredentialStore) *keyring {
	return &keyring{source: source, store: store, lock: make(chan struct{}, 1)}
}

// decryptionKey returns the key for decryption, or an error if there is none.
func (k *keyring) decryptionKey(ctx context.Context) (*age.X25519Identity, error) {
	return k.get(ctx, false)
}

// encryptionKey returns the key for encryption. It creates a key if there is none and no credential has been encrypted yet.
func (k *keyring) encryptionKey(ctx context.Context) (*age.X25519Identity, error) {
	return k.get(ctx, true)
}

// get returns the cached key, or loads it. If create is true, it may create the key file.
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
		k.loaded = key // A key that cannot be parsed is not cached: the operator may correct it.
	}
	return id, err
}

// name returns the source of the key for messages.
func (k KeySource) name() string {
	switch {
	case k.File != "":
		return "the file " + k.File
	case len(k.Command) > 0:
		return "the command " + k.Command[0] // the arguments are left out, because they may be confidential
	}
	return KeyVariable
}

// load reads the key from its source. If the source is a file that does not exist and no credential is stored, it creates the
// file if create is true.
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
	// The key file is created only while no credential is stored: values that were encrypted with a lost key could not be
	// decrypted with a new one.
	all, err := k.store.List(ctx, caisson.AllAccounts())
	if err == nil && len(all) > 0 { // since the first read, another process may have created the file and a credential
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

// parseKey returns the only age identity in the text of a key file. from names the source of the text, for errors.
func parseKey(text caisson.Secret, from string) (*age.X25519Identity, error) {
	var found *age.X25519Identity
	lines := bufio.NewScanner(strings.NewReader(text.Reveal()))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, err := age.ParseX25519Identity(line)
		if err != nil || found != nil { // err is not returned, because it may include the line
			return nil, badKey(from)
		}
		found = id
	}
	if lines.Err() != nil || found == nil {
		return nil, badKey(from)
	}
	return found, nil
}

// badKey returns the error for a key, from the source called from, that cannot be parsed. It does not include the key.
func badKey(from string) error {
	return caisson.Errorf(caisson.Conflict, "%s does not hold the key of credentials; it should be one line AGE-SECRET-KEY-1…, as age-keygen makes", from)
}
