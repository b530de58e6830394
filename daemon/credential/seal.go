package credential

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"filippo.io/age"

	"github.com/caisson-dev/caisson"
)

// sealVersion is the first byte of every text that seal encrypts: the version of the format.
const sealVersion = 1

// maxPlain is the maximum size in bytes of a text that seal encrypts: a value, the account and the name.
const maxPlain = MaxValue + 1024

// seal encrypts a value together with its account and name. If the encrypted text did not contain account and name, a program
// with write access to the store could give a credential to another account: age authenticates only the encrypted text.
func seal(id *age.X25519Identity, account, name string, value caisson.Secret) ([]byte, error) {
	plain := []byte{sealVersion}
	plain = appendPart(plain, account)
	plain = appendPart(plain, name)
	plain = append(plain, value.Reveal()...)
	defer clear(plain)
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, id.Recipient())
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "credential %s cannot be encrypted", name)
	}
	if _, err := w.Write(plain); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "credential %s cannot be encrypted", name)
	}
	if err := w.Close(); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "credential %s cannot be encrypted", name)
	}
	return sealed.Bytes(), nil
}

// open decrypts the output of seal for the same account and name. It never returns a partial value.
func open(id *age.X25519Identity, account, name string, sealed []byte) (caisson.Secret, error) {
	var none caisson.Secret
	r, err := age.Decrypt(bytes.NewReader(sealed), id)
	if _, other := errors.AsType[*age.NoIdentityMatchError](err); other {
		return none, caisson.Wrap(err, caisson.Conflict, "credential %s was encrypted with another key than the current one; restore the old key, or set the value again with: caisson credential rotate %s", name, name)
	}
	var plain []byte
	if err == nil {
		plain, err = io.ReadAll(io.LimitReader(r, maxPlain+1))
	}
	defer clear(plain)
	if err != nil || len(plain) > maxPlain {
		return none, damagedError(errors.Join(err, errors.New("wrong plaintext")), name)
	}
	rest, ok := bytes.CutPrefix(plain, []byte{sealVersion})
	owner, rest, okAccount := cutPart(rest)
	called, value, okName := cutPart(rest)
	switch {
	case !ok || !okAccount || !okName || len(value) == 0:
		return none, damagedError(errors.New("malformed plaintext"), name)
	case string(owner) != account || string(called) != name:
		return none, damagedError(errors.New("it belongs to another account or name"), name)
	}
	return caisson.NewSecret(string(value)), nil
}

// damagedError returns the error for a stored value that cannot be decrypted, or that belongs to another credential.
func damagedError(cause error, name string) error {
	return caisson.Wrap(cause, caisson.Conflict, "the stored value of credential %s is damaged or was copied from another credential; set it again with: caisson credential rotate %s", name, name)
}

// appendPart appends s, preceded by its length.
func appendPart(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// cutPart returns the first part of b, which appendPart has appended, and the rest of b. ok is false if b is malformed.
func cutPart(b []byte) (part, rest []byte, ok bool) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > uint64(len(b)-size) {
		return nil, nil, false
	}
	b = b[size:]
	return b[:n], b[n:], true
}
