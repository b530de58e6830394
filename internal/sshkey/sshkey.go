// Package sshkey parses SSH private keys that users store in credentials.
package sshkey

import (
	"bytes"
	"errors"

	"golang.org/x/crypto/ssh"

	"github.com/caisson-dev/caisson"
)

// Parse parses a private key in PEM or OpenSSH's format. Errors are Invalid, begin with what, a short description of the key's
// owner, and contain no part of the key.
func Parse(what string, key []byte) (ssh.Signer, error) {
	signer, err := ssh.ParsePrivateKey(key)
	if err == nil {
		return signer, nil
	}
	// ENCRYPTED PRIVATE KEY is the header of encrypted PKCS #8, a format that package ssh does not support.
	if _, locked := errors.AsType[*ssh.PassphraseMissingError](err); locked || bytes.Contains(key, []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----")) {
		return nil, caisson.Errorf(caisson.Invalid, "%s has a passphrase, which cannot be entered; store a copy without one, created with ssh-keygen -p -f COPY", what)
	}
	return nil, caisson.Errorf(caisson.Invalid, "%s is not a supported SSH private key; store one in PEM or OpenSSH's format, without a passphrase", what)
}
