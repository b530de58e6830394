package repos_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/caisson-dev/caisson"
)

// TestLockedKeys: a key with a passphrase is refused when the repository is added; if it is stored later, the error names it.
func TestLockedKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, key, err := ed25519.GenerateKey(rand.Reader)
	w.must(err)
	locked, err := ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte("secret"))
	w.must(err)
	plain, err := ssh.MarshalPrivateKey(key, "")
	w.must(err)
	w.secrets["LOCKED"], w.secrets["KEY"], w.secrets["TOKEN"] = string(pem.EncodeToMemory(locked)), string(pem.EncodeToMemory(plain)), "x"
	public, err := ssh.NewPublicKey(key.Public())
	w.must(err)
	r := caisson.Repo{Name: "keyed", URL: "ssh://git@127.0.0.1:1/r.git", Credential: "LOCKED", HostKeys: []string{"h " + string(ssh.MarshalAuthorizedKey(public))}}
	for _, tt := range []struct {
		change func(*caisson.Repo)
		kind   caisson.Kind
		says   string
	}{
		{func(*caisson.Repo) {}, caisson.Invalid, "credential LOCKED has a passphrase"},
		{func(r *caisson.Repo) { r.Credential = "TOKEN" }, caisson.Invalid, "credential TOKEN is not a supported SSH private key"},
		{func(r *caisson.Repo) { r.Credential = "NONE" }, caisson.NotFound, "no such credential"},
		{func(r *caisson.Repo) { r.Credential = "" }, caisson.Unauthed, "needs a credential"},
		{func(r *caisson.Repo) { r.Credential, r.SigningKey = "KEY", "LOCKED" }, caisson.Invalid, "the signing key has a passphrase"},
		{func(r *caisson.Repo) { r.URL, r.Credential, r.SigningKey = w.bare, "", "TOKEN" }, caisson.Invalid, "the signing key is not a supported SSH private key"},
		{func(r *caisson.Repo) { r.URL, r.Credential, r.SigningKey = w.bare, "", "NONE" }, caisson.NotFound, "no such credential"},
		{func(r *caisson.Repo) { r.Credential = "KEY" }, caisson.Unavailable, ""}, // nobody is there
	} {
		bad := r
		tt.change(&bad)
		_, err := w.api.AddRepo(w.ctx(), bad)
		w.wants(err, tt.kind, tt.says)
	}
	stored := r
	stored.Account, stored.Local, stored.Forge, stored.Authors = "local", true, caisson.ForgeNone, caisson.AuthorSet
	w.must(w.store.Repos().Insert(t.Context(), &stored))
	w.must(makeMirror(w, "keyed"))
	_, err = w.api.FetchRepo(w.ctx(), "keyed")
	w.wants(err, caisson.Invalid, "credential LOCKED has a passphrase")
}

// makeMirror gives a repository the empty directory of its mirror.
func makeMirror(w *world, name string) error {
	return os.MkdirAll(filepath.Join(w.data, "relay", "local", name, "mirror"), 0o700)
}
