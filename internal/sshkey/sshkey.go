// Package sshkey reads SSH private keys as people store them in credentials.
package sshkey

import (
	"bytes"
	"errors"

	"golang.org/x/crypto/ssh"

	"github.com/caisson-dev/caisson"
)

// Parse reads a private key in PEM or OpenSSH's format. Errors are Invalid, begin with what, a few words for whose key it is, and say nothing
// of the key itself.
func Parse(what string, key []byte) (ssh.Signer, error) {
	signer, err := ssh.ParsePrivateKey(key)
	if err == nil {
		return signer, nil
	}
	// The second is PKCS #8 with a password, which package ssh does not know at all.
	if _, locked := errors.AsType[*ssh.PassphraseMissingError](err); locked || bytes.Contains(key, []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----")) {
		return nil, caisson.Errorf(caisson.Invalid, "%s has a passphrase, and nobody is there to type it; store a copy without one, which ssh-keygen -p -f COPY makes", what)
	}
	return nil, caisson.Errorf(caisson.Invalid, "%s is no SSH private key that can be used here; store one in PEM or OpenSSH's format, without a passphrase", what)
}
