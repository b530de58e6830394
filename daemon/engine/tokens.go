package engine

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// Tokens implements [caisson.Tokens].
type Tokens struct {
	store   caisson.Store
	events  caisson.Publisher
	revoked func(caisson.ID) // ends the SSH connections of a token
}

// Tokens returns the service that manages tokens.
func (e *Engine) Tokens() *Tokens {
	return &Tokens{e.data.store, e.events, func(id caisson.ID) { e.access.ssh.Revoke(id) }}
}

var _ caisson.Tokens = (*Tokens)(nil)

// tokenPrefix is the beginning of the secret of every token. With it scanners can recognise a leaked token.
const tokenPrefix = "caisson_"

// CreateToken creates a token for an account, and returns it with its secret. ttl is how long it is valid; 0 means for ever.
func (t *Tokens) CreateToken(ctx context.Context, account, name string, ttl time.Duration) (*caisson.Token, caisson.Secret, error) {
	// rand.Text returns 26 characters of base32, which are 130 bits.
	secret := tokenPrefix + rand.Text()
	token, err := t.create(ctx, caisson.Token{Account: account, Name: name}, sha256.Sum256([]byte(secret)), ttl)
	if err != nil {
		return nil, caisson.Secret{}, err
	}
	return token, caisson.NewSecret(secret), nil
}

// CreateSSHKey creates a token for key, a public SSH key. ttl is how long the token is valid; 0 means for ever.
func (t *Tokens) CreateSSHKey(ctx context.Context, account, name, key string, ttl time.Duration) (*caisson.Token, error) {
	blob, err := parseSSHKey(key)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(blob)
	token := caisson.Token{Account: account, Name: name, SSHKey: "SHA256:" + base64.RawStdEncoding.EncodeToString(digest[:])}
	created, err := t.create(ctx, token, hashSSHKey(blob), ttl)
	if caisson.KindOf(err) == caisson.Conflict {
		err = caisson.Wrap(err, caisson.Conflict, "the key %s is registered already; remove its token first", token.SSHKey)
	}
	return created, err
}

// create completes a token and stores it with the hash of its secret or SSH key. ttl is how long it is valid; 0 means for ever.
func (t *Tokens) create(ctx context.Context, token caisson.Token, hash [32]byte, ttl time.Duration) (*caisson.Token, error) {
	if err := caisson.LocalOnly(ctx); err != nil {
		return nil, err
	}
	if len(token.Name) > 100 {
		return nil, caisson.Invalidf("name", "is longer than 100 bytes")
	}
	if ttl < 0 {
		return nil, caisson.Invalidf("ttl", "is negative")
	}
	if token.Account == "" {
		caller, err := caisson.CallerOf(ctx)
		if err != nil {
			return nil, err
		}
		token.Account = caller.Account
	}
	if _, err := t.store.Accounts().Ensure(ctx, token.Account); err != nil {
		return nil, err
	}
	token.ID, token.CreatedAt = caisson.NewID(caisson.TokenPrefix), time.Now().UTC()
	if ttl > 0 {
		end := token.CreatedAt.Add(ttl)
		token.ExpiresAt = &end
	}
	if err := t.store.Tokens().Insert(ctx, &token, hash); err != nil {
		return nil, err
	}
	t.events.Publish(ctx, token.Account, "token.created", string(token.ID), map[string]string{"name": token.Name})
	return &token, nil
}

// sshKeyTypes are the types of SSH keys that can be registered.
var sshKeyTypes = []string{
	"ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa",
	"sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com",
}

// maxSSHKey is the maximum size of a public SSH key in bytes, in SSH's wire format.
const maxSSHKey = 8 << 10

// parseSSHKey returns the key in a line of authorized_keys, in SSH's wire format. It checks only the type of the key, and the
// size of an RSA key. The SSH job, which verifies signatures, checks the rest.
func parseSSHKey(line string) ([]byte, error) {
	words := strings.Fields(line)
	if len(line) > 2*maxSSHKey || strings.ContainsAny(strings.TrimSpace(line), "\r\n") || len(words) < 2 || !slices.Contains(sshKeyTypes, words[0]) {
		return nil, caisson.Invalidf("sshKey", "is not one public key such as ssh-ed25519 AAAA…; give the content of a file like ~/.ssh/id_ed25519.pub")
	}
	blob, err := base64.StdEncoding.DecodeString(words[1])
	prefix := append(binary.BigEndian.AppendUint32(nil, uint32(len(words[0]))), words[0]...)
	if err != nil || len(blob) > maxSSHKey || len(blob) <= len(prefix) || !bytes.HasPrefix(blob, prefix) {
		return nil, caisson.Invalidf("sshKey", "is damaged: its second word is no %s", words[0])
	}
	if words[0] == "ssh-rsa" && rsaBits(blob[len(prefix):]) < minRSABits {
		return nil, caisson.Invalidf("sshKey", "is an RSA key of less than %d bits, which is too weak; create another one with ssh-keygen -t ed25519", minRSABits)
	}
	return blob, nil
}

// minRSABits is the minimum size of an RSA key in bits.
const minRSABits = 2048

// rsaBits returns the size of the modulus of an RSA key in bits, rounded up to whole bytes; 0 if the key is malformed. numbers
// are the exponent and the modulus, each after its length (RFC 4253, section 6.6).
func rsaBits(numbers []byte) int {
	var n []byte
	for range 2 {
		if len(numbers) < 4 {
			return 0
		}
		size := binary.BigEndian.Uint32(numbers)
		if numbers = numbers[4:]; uint64(size) > uint64(len(numbers)) {
			return 0
		}
		n, numbers = numbers[:size], numbers[size:]
	}
	return 8 * len(bytes.TrimLeft(n, "\x00"))
}

// hashSSHKey returns the hash under which the store has an SSH key. The hashed text contains a zero byte, which the secret of a
// token never contains, so that the hash of a key cannot be that of a secret.
func hashSSHKey(blob []byte) [32]byte {
	return sha256.Sum256(append([]byte("ssh key\x00"), blob...))
}

// ListTokens returns the tokens of the caller's account.
func (t *Tokens) ListTokens(ctx context.Context) ([]*caisson.Token, error) {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return nil, err
	}
	return t.store.Tokens().List(ctx, caisson.In(caller.Account))
}

// RemoveToken removes a token of the caller's account, and ends its SSH connections.
func (t *Tokens) RemoveToken(ctx context.Context, id caisson.ID) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	if err := t.store.Tokens().Delete(ctx, caisson.In(caller.Account), id); err != nil {
		return err
	}
	t.revoked(id)
	t.events.Publish(ctx, caller.Account, "token.removed", string(id), nil)
	return nil
}

// lastUsePrecision is how old the recorded time of a token's last use must be before a further use is recorded. Each record is
// a write to the store.
const lastUsePrecision = time.Minute

// FindToken returns the unexpired token whose secret has the given SHA-256 hash, and records that it was used.
func (t *Tokens) FindToken(ctx context.Context, hash [32]byte) (*caisson.Token, error) {
	token, err := t.find(ctx, hash, true)
	if err == nil && token.SSHKey != "" {
		return nil, caisson.Errorf(caisson.Unauthed, "this token is for SSH only")
	}
	return token, err
}

// FindSSHKey returns the unexpired token of key, a public key in SSH's wire format. If use is true, it records that the token was
// used. Returns Unauthed if there is no such token.
func (t *Tokens) FindSSHKey(ctx context.Context, key []byte, use bool) (*caisson.Token, error) {
	token, err := t.find(ctx, hashSSHKey(key), use)
	if err == nil && token.SSHKey == "" {
		return nil, caisson.Errorf(caisson.Unauthed, "this key is not registered")
	}
	return token, err
}

// CheckToken returns the token with an id. It returns Unauthed if the token was removed or has expired.
func (t *Tokens) CheckToken(ctx context.Context, account string, id caisson.ID) (*caisson.Token, error) {
	list, err := t.store.Tokens().List(ctx, caisson.In(account))
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(x *caisson.Token) bool { return x.ID == id })
	if i < 0 || list[i].ExpiresAt != nil && !time.Now().Before(*list[i].ExpiresAt) {
		return nil, caisson.Errorf(caisson.Unauthed, "this token was removed, or has expired")
	}
	return list[i], nil
}

// find returns the unexpired token with a hash. If use is true, it records the use, unless one within lastUsePrecision is
// recorded.
func (t *Tokens) find(ctx context.Context, hash [32]byte, use bool) (*caisson.Token, error) {
	now := time.Now()
	token, err := t.store.Tokens().Find(ctx, hash, now)
	if err != nil {
		return nil, err
	}
	if use && (token.LastUsedAt == nil || now.Sub(*token.LastUsedAt) > lastUsePrecision) {
		err = t.store.Tokens().RecordUse(ctx, token.ID, now)
	}
	return token, err
}
