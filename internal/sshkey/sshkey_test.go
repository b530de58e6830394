package sshkey_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/sshkey"
)

// TestParse tests that errors describe the problem of a key and contain nothing of the key.
func TestParse(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	locked, err := ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	legacy := &pem.Block{Type: "RSA PRIVATE KEY", Headers: map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-128-CBC,00"}, Bytes: []byte("x")}
	if s, err := sshkey.Parse("it", pem.EncodeToMemory(plain)); err != nil || s.PublicKey().Type() != ssh.KeyAlgoED25519 {
		t.Errorf("%v, %v", s, err)
	}
	for name, tt := range map[string]struct{ key, says string }{
		"OpenSSH's format": {string(pem.EncodeToMemory(locked)), "it has a passphrase"},
		"PEM":              {string(pem.EncodeToMemory(legacy)), "it has a passphrase"},
		"PKCS #8":          {string(pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")})), "it has a passphrase"},
		"a public key":     {string(ssh.MarshalAuthorizedKey(mustPublic(t, key))), "it is not a supported SSH private key"},
		"a token":          {"ghp_something", "it is not a supported SSH private key"},
		"nothing":          {"", "it is not a supported SSH private key"},
	} {
		_, err := sshkey.Parse("it", []byte(tt.key))
		if caisson.KindOf(err) != caisson.Invalid || !strings.HasPrefix(caisson.MessageOf(err), tt.says) || strings.Contains(err.Error(), "ghp_") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func mustPublic(t *testing.T, key ed25519.PrivateKey) ssh.PublicKey {
	t.Helper()
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s.PublicKey()
}
