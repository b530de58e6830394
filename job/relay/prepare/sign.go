package prepare

import (
	"crypto/sha512"
	"encoding/base64"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/sshkey"
)

// Format of SSH signatures; see PROTOCOL.sshsig of OpenSSH.
const (
	sshsigMagic     = "SSHSIG"
	sshsigNamespace = "git"
	sshsigHash      = "sha512"
	sshsigBegin     = "-----BEGIN SSH SIGNATURE-----\n"
	sshsigEnd       = "-----END SSH SIGNATURE-----\n"
	maxSignature    = 16 << 10 // bytes of an armoured signature
)

// SSHSign returns a function that signs commits as git does with gpg.format=ssh. key is an SSH private key without a passphrase:
// Ed25519, ECDSA, or RSA of at least 2048 bits, with SHA-512. Equal payloads get equal signatures. The function is safe for
// concurrent use. Errors are Invalid and do not contain parts of the key.
func SSHSign(key []byte) (func(payload []byte) (string, error), error) {
	signer, err := sshkey.Parse("the signing key", key)
	if err != nil {
		return nil, err
	}
	algorithm := signer.PublicKey().Type()
	switch algorithm {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521:
	case ssh.KeyAlgoRSA:
		algorithm = ssh.KeyAlgoRSASHA512
	default:
		return nil, caisson.Errorf(caisson.Invalid, "commits are not signed with keys of type %.40q; use Ed25519, ECDSA or RSA", algorithm)
	}
	with, ok := signer.(ssh.AlgorithmSigner)
	if !ok {
		return nil, caisson.Errorf(caisson.Invalid, "commits are not signed with keys of type %.40q; use Ed25519, ECDSA or RSA", algorithm)
	}
	return func(payload []byte) (string, error) { return sshSignature(with, algorithm, payload) }, nil
}

// sshSignature returns the armoured signature of payload.
func sshSignature(signer ssh.AlgorithmSigner, algorithm string, payload []byte) (string, error) {
	sum := sha512.Sum512(payload)
	signed := append([]byte(sshsigMagic), ssh.Marshal(struct {
		Namespace, Reserved, Hash string
		Sum                       []byte
	}{sshsigNamespace, "", sshsigHash, sum[:]})...)
	// Without a source of randomness ECDSA is deterministic (RFC 6979); the other algorithms always are.
	sig, err := signer.SignWithAlgorithm(nil, signed, algorithm)
	if err != nil {
		return "", caisson.Wrap(err, caisson.Internal, "the signing key does not sign")
	}
	blob := append([]byte(sshsigMagic), ssh.Marshal(struct {
		Version                   uint32
		Key                       []byte
		Namespace, Reserved, Hash string
		Signature                 []byte
	}{1, signer.PublicKey().Marshal(), sshsigNamespace, "", sshsigHash, ssh.Marshal(sig)})...)
	text := base64.StdEncoding.EncodeToString(blob)
	var b strings.Builder
	b.WriteString(sshsigBegin)
	for len(text) > 0 {
		n := min(len(text), 70)
		b.WriteString(text[:n] + "\n")
		text = text[n:]
	}
	b.WriteString(sshsigEnd)
	return b.String(), nil
}

// validSignature reports whether s is armoured text that can be the value of a commit header.
func validSignature(s string) bool {
	body, ok := strings.CutPrefix(s, sshsigBegin)
	if !ok || len(s) > maxSignature {
		return false
	}
	body, ok = strings.CutSuffix(strings.TrimSuffix(body, "\n")+"\n", sshsigEnd)
	if !ok || body == "" {
		return false
	}
	blob, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(body, "\n", ""))
	return err == nil && strings.HasPrefix(string(blob), sshsigMagic)
}
