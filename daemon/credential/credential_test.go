package credential

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/events"
	"github.com/caisson-dev/caisson/daemon/sqlite"
)

const plain = "sk-ant-api03-PLAINTEXT-MARKER-0123456789"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t *testing.T, err error, kind caisson.Kind) {
	t.Helper()
	if err == nil || caisson.KindOf(err) != kind {
		t.Fatalf("error %v, want %s", err, kind)
	}
	if msg := caisson.MessageOf(err); strings.ContainsAny(msg, "\n") || strings.Contains(err.Error(), "MARKER") || strings.Contains(err.Error(), "SECRET-KEY-1Q") {
		t.Fatalf("error %q", err)
	}
}

// world is a vault with a real store in a directory.
type world struct {
	*Vault
	dir     string
	store   *sqlite.Store
	log     bytes.Buffer
	changes []string
	mu      sync.Mutex // guards changes
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{dir: t.TempDir()}
	audit := func() (caisson.Secret, bool, error) { return LoadKeyFile(filepath.Join(w.dir, "audit.key")) }
	var err error
	w.store, err = sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(w.dir, "caisson.db"), AuditKey: audit})
	must(t, err)
	t.Cleanup(func() { must(t, w.store.Close()) })
	w.Vault = w.vault(t, KeySource{File: w.keyFile()})
	return w
}

func (w *world) keyFile() string { return filepath.Join(w.dir, "credential.key") }

// vault returns another vault over the same store.
func (w *world) vault(t *testing.T, key KeySource) *Vault {
	t.Helper()
	v, err := New(Config{
		Store: w.store.Credentials(), Key: key, Log: slog.New(slog.NewTextHandler(&w.log, nil)),
		Events: events.New(w.store.Events(), nil),
		Changed: func(_ context.Context, account, name string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changes = append(w.changes, account+"/"+name)
		},
	})
	must(t, err)
	return v
}

func as(t *testing.T, account string) context.Context {
	return caisson.WithCaller(t.Context(), caisson.Caller{Account: account, Token: caisson.ID("tk-" + account)})
}

func set(t *testing.T, v *Vault, account, name, value string) {
	t.Helper()
	_, err := v.SetCredential(as(t, account), name, caisson.NewSecret(value))
	must(t, err)
}

func wantValue(t *testing.T, v *Vault, account, name, want string) {
	t.Helper()
	s, err := v.Secret(t.Context(), account, name)
	must(t, err)
	if s.Reveal() != want {
		t.Errorf("%s/%s is not what was set", account, name)
	}
}

func TestVault(t *testing.T) {
	w := newWorld(t)
	c, err := w.SetCredential(as(t, "a"), "OPENAI_API_KEY", caisson.NewSecret(plain))
	must(t, err)
	if c.Name != "OPENAI_API_KEY" || c.Account != "a" || c.Kind != "OpenAI API key" || c.CreatedAt.IsZero() || c.RotatedAt != nil {
		t.Errorf("set: %+v", c)
	}
	_, err = w.SetCredential(as(t, "a"), "OPENAI_API_KEY", caisson.NewSecret("x"))
	wantKind(t, err, caisson.Conflict)
	wantValue(t, w.Vault, "a", "OPENAI_API_KEY", plain)
	set(t, w.Vault, "b", "OPENAI_API_KEY", "of b")
	c, err = w.RotateCredential(as(t, "a"), "OPENAI_API_KEY", caisson.NewSecret("new\nlines\n"))
	must(t, err)
	if c.RotatedAt == nil {
		t.Errorf("rotated: %+v", c)
	}
	wantValue(t, w.Vault, "a", "OPENAI_API_KEY", "new\nlines\n")
	wantValue(t, w.Vault, "b", "OPENAI_API_KEY", "of b")
	_, err = w.RotateCredential(as(t, "a"), "NONE", caisson.NewSecret("x"))
	wantKind(t, err, caisson.NotFound)
	list, err := w.ListCredentials(as(t, "a"))
	if err != nil || len(list) != 1 || list[0].Account != "a" {
		t.Errorf("list: %v, %v", list, err)
	}
	wantKind(t, w.RemoveCredential(as(t, "c"), "OPENAI_API_KEY"), caisson.NotFound)
	must(t, w.RemoveCredential(as(t, "a"), "OPENAI_API_KEY"))
	_, err = w.Secret(t.Context(), "a", "OPENAI_API_KEY")
	wantKind(t, err, caisson.NotFound)
	_, err = w.Secret(t.Context(), "", "OPENAI_API_KEY")
	wantKind(t, err, caisson.Unauthed)
	if want := []string{"a/OPENAI_API_KEY", "b/OPENAI_API_KEY", "a/OPENAI_API_KEY", "a/OPENAI_API_KEY"}; !slices.Equal(w.changes, want) {
		t.Errorf("changes %v, want %v", w.changes, want)
	}

	// A later process with the same file.
	wantValue(t, w.vault(t, KeySource{File: w.keyFile()}), "b", "OPENAI_API_KEY", "of b")

	for name, err := range map[string]error{
		"set":    last(w.SetCredential(t.Context(), "X", caisson.NewSecret("x"))),
		"rotate": last(w.RotateCredential(t.Context(), "X", caisson.NewSecret("x"))),
		"list":   last(w.ListCredentials(t.Context())),
		"remove": w.RemoveCredential(t.Context(), "X"),
	} {
		if caisson.KindOf(err) != caisson.Unauthed {
			t.Errorf("%s without a caller: %v", name, err)
		}
	}
}

func last[T any](_ T, err error) error { return err }

// TestPromise8CredentialsAreRecorded checks that the audit record has the caller, the operation and the credential, but not its
// value.
// TestCheck tests that a value which does not suit its credential is not stored.
func TestCheck(t *testing.T) {
	w := newWorld(t)
	v, err := New(Config{
		Store: w.store.Credentials(), Key: KeySource{File: w.keyFile()},
		Check: func(account, name string, value caisson.Secret) error {
			if account+"/"+name == "a/RUN_KEY" && value.Reveal() == "short" {
				return caisson.Invalidf("value", "is too short")
			}
			return nil
		},
	})
	must(t, err)
	if _, err := v.SetCredential(as(t, "a"), "RUN_KEY", caisson.NewSecret("short")); caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("set: %v", err)
	}
	set(t, v, "b", "RUN_KEY", "short")
	set(t, v, "a", "RUN_KEY", "longer")
	if _, err := v.RotateCredential(as(t, "a"), "RUN_KEY", caisson.NewSecret("short")); caisson.KindOf(err) != caisson.Invalid {
		t.Errorf("rotate: %v", err)
	}
	wantValue(t, v, "a", "RUN_KEY", "longer")
}

func TestPromise8CredentialsAreRecorded(t *testing.T) {
	w := newWorld(t)
	set(t, w.Vault, "a", "KEY", plain)
	must(t, last(w.RotateCredential(as(t, "a"), "KEY", caisson.NewSecret(plain+"2"))))
	must(t, w.RemoveCredential(as(t, "a"), "KEY"))
	events, err := w.store.Events().After(t.Context(), caisson.In("a"), "KEY", 0, 10)
	must(t, err)
	var got []string
	for _, e := range events {
		got = append(got, e.Actor+" "+e.Type)
	}
	if want := []string{"tk-a credential.set", "tk-a credential.rotated", "tk-a credential.removed"}; !slices.Equal(got, want) {
		t.Errorf("recorded %v, want %v", got, want)
	}
	if r, err := w.store.Events().Verify(t.Context(), ""); err != nil || r.Problem != "" || strings.Contains(fmt.Sprintf("%+v", events), "MARKER") {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestPromise2StoredBytes searches all files of the store for values, while it is open and afterwards.
func TestPromise2StoredBytes(t *testing.T) {
	w := newWorld(t)
	long := strings.Repeat(plain+"\n", 200)
	set(t, w.Vault, "a", "SHORT", plain)
	set(t, w.Vault, "a", "LONG", long)
	must(t, last(w.RotateCredential(as(t, "a"), "SHORT", caisson.NewSecret(plain+plain))))
	must(t, w.RemoveCredential(as(t, "a"), "LONG"))
	wantValue(t, w.Vault, "a", "SHORT", plain+plain)
	look := func() {
		t.Helper()
		files, err := os.ReadDir(w.dir)
		must(t, err)
		for _, f := range files {
			b, err := os.ReadFile(filepath.Join(w.dir, f.Name()))
			must(t, err)
			for _, form := range []string{"PLAINTEXT-MARKER", hex.EncodeToString([]byte("PLAINTEXT-MARKER")), base64.StdEncoding.EncodeToString([]byte("PLAINTEXT-MARKER"))} {
				if bytes.Contains(b, []byte(form)) {
					t.Errorf("%s contains a value", f.Name())
				}
			}
			if f.Name() != "credential.key" && bytes.Contains(b, []byte("AGE-SECRET-KEY")) {
				t.Errorf("%s contains the key", f.Name())
			}
			if info, _ := f.Info(); info.Mode().Perm() != 0o600 {
				t.Errorf("%s has the mode %v", f.Name(), info.Mode())
			}
		}
		if len(files) < 3 {
			t.Errorf("only %d files", len(files))
		}
	}
	if wal, err := os.Stat(filepath.Join(w.dir, "caisson.db-wal")); err != nil || wal.Size() == 0 {
		t.Errorf("there is no log to look into: %v", err)
	}
	look()
	must(t, w.store.Close())
	look()
	if strings.Contains(w.log.String(), "MARKER") {
		t.Errorf("log: %s", w.log.String())
	}
	check := fmt.Sprintf("%v %+v %#v %+v", w.Vault, w.Vault, w.Vault, *w.Vault.key)
	if strings.Contains(check, "AGE-SECRET-KEY") {
		t.Error("printing a vault shows its key")
	}
}

func TestNamesAndValues(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"A", "a.b-c_9", strings.Repeat("x", 64)} {
		set(t, w.Vault, "a", name, "x")
	}
	for _, name := range []string{"", "9A", "_A", "-A", ".A", "A B", "A/B", "A\n", "Ä", "A\x00", strings.Repeat("x", 65), plain, "ghp_MARKER", "AIzaMARKER"} {
		_, err := w.SetCredential(as(t, "a"), name, caisson.NewSecret("x"))
		wantKind(t, err, caisson.Invalid)
		if caisson.FieldOf(err) != "name" {
			t.Errorf("%q: %v", name, err)
		}
	}
	for i, value := range []string{" ", "\x01\x7f", "日本", strings.Repeat("x", MaxValue), "a\r\nb"} {
		name := fmt.Sprint("V", i)
		set(t, w.Vault, "a", name, value)
		wantValue(t, w.Vault, "a", name, value)
	}
	for _, value := range []string{"", "MARKER\x00", "MARKER\xff", "MARKER" + strings.Repeat("x", MaxValue-5), "[redacted]"} {
		_, err := w.SetCredential(as(t, "a"), "BAD", caisson.NewSecret(value))
		wantKind(t, err, caisson.Invalid)
		if caisson.FieldOf(err) != "value" {
			t.Errorf("%.20q: %v", value, err)
		}
		wantKind(t, last(w.RotateCredential(as(t, "a"), "A", caisson.NewSecret(value))), caisson.Invalid)
	}
	for _, k := range Known() {
		if CheckName(k.Name) != nil || k.Kind == "" || Kind(k.Name) != k.Kind {
			t.Errorf("known name %+v", k)
		}
	}
}

// TestPromise2MovedRows moves and damages encrypted values, and checks that none of them can be decrypted.
func TestPromise2MovedRows(t *testing.T) {
	w := newWorld(t)
	set(t, w.Vault, "a", "ONE", plain)
	set(t, w.Vault, "a", "TWO", "other")
	set(t, w.Vault, "b", "ONE", "mine")
	store := w.store.Credentials()
	_, sealed, err := store.Get(t.Context(), caisson.In("a"), "ONE")
	must(t, err)
	put := func(account, name string, sealed []byte) error {
		t.Helper()
		must(t, last(store.Replace(t.Context(), caisson.In(account), name, sealed, time.Now())))
		_, err := w.Secret(t.Context(), account, name)
		return err
	}
	wantKind(t, put("b", "ONE", sealed), caisson.Conflict)
	wantKind(t, put("a", "TWO", sealed), caisson.Conflict)
	id, err := w.key.decryptionKey(t.Context())
	must(t, err)
	for n := range sealed {
		cut := slices.Clone(sealed)
		cut[n] ^= 1
		wantKind(t, last(open(id, "a", "ONE", cut)), caisson.Conflict)
	}
	for _, n := range []int{1, 30, 100, len(sealed) - 17, len(sealed) - 1} {
		wantKind(t, put("a", "ONE", sealed[:n]), caisson.Conflict)
	}
	wantKind(t, put("a", "ONE", append(slices.Clone(sealed), 0)), caisson.Conflict)
	must(t, put("a", "ONE", sealed))
	wantValue(t, w.Vault, "a", "ONE", plain)
}

func FuzzOpen(f *testing.F) {
	id, err := age.GenerateX25519Identity()
	if err != nil {
		f.Fatal(err)
	}
	good, err := seal(id, "a", "N", caisson.NewSecret("v"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{})
	f.Add([]byte{1, 1, 'a', 1, 'N', 'v'})
	f.Add([]byte{1, 1, 'b', 1, 'N', 'v'})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add(good)
	f.Fuzz(func(t *testing.T, in []byte) {
		if s, err := open(id, "a", "N", in); err == nil && !bytes.Equal(in, good) || err != nil && !s.IsZero() {
			t.Fatalf("%q opens", in)
		}
		// The same, as a plaintext that was encrypted by a third party with the public key.
		var sealed bytes.Buffer
		w, err := age.Encrypt(&sealed, id.Recipient())
		must(t, err)
		must(t, last(w.Write(in)))
		must(t, w.Close())
		s, err := open(id, "a", "N", sealed.Bytes())
		value, ours := bytes.CutPrefix(in, []byte{1, 1, 'a', 1, 'N'})
		if err == nil && (!ours || s.Reveal() != string(value)) && !bytes.Contains(in, []byte{0x80}) && !bytes.Contains(in, []byte{0x81}) {
			t.Fatalf("%q opens as %q", in, s.Reveal())
		}
	})
}

func TestConcurrent(t *testing.T) {
	w := newWorld(t)
	vaults := []*Vault{w.Vault, w.vault(t, KeySource{File: w.keyFile()}), w.vault(t, KeySource{File: w.keyFile()})}
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range 12 {
		wg.Go(func() {
			<-start
			v, name := vaults[i%len(vaults)], fmt.Sprint("K", i)
			if _, err := v.SetCredential(as(t, "a"), name, caisson.NewSecret(name)); err != nil {
				t.Error(err)
				return
			}
			for n := range 5 {
				if _, err := v.RotateCredential(as(t, "a"), name, caisson.NewSecret(fmt.Sprint(name, n))); err != nil {
					t.Error(err)
				}
				if s, err := vaults[n%len(vaults)].Secret(t.Context(), "a", name); err != nil || s.Reveal() != fmt.Sprint(name, n) {
					t.Errorf("%s after rotation %d: %v", name, n, err)
				}
			}
		})
	}
	close(start)
	wg.Wait()
	if len(w.changes) != 12*6 {
		t.Errorf("%d changes", len(w.changes))
	}
}

// TestTooMany checks that an account cannot fill the disk with credentials.
func TestTooMany(t *testing.T) {
	w := newWorld(t)
	set(t, w.Vault, "a", "FIRST", "x") // creates the key
	for i := range maxCredentials - 1 {
		c := &caisson.Credential{Name: fmt.Sprint("N", i), Account: "a"}
		if err := w.cfg.Store.Insert(t.Context(), c, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	_, err := w.SetCredential(as(t, "a"), "MORE", caisson.NewSecret("x"))
	wantKind(t, err, caisson.Exhausted)
	set(t, w.Vault, "b", "OWN", "x")
}

// TestMatch checks that a value can be compared, and only by a local caller and with a credential of its account.
func TestMatch(t *testing.T) {
	v := newWorld(t).Vault
	local := caisson.WithCaller(t.Context(), caisson.Caller{Account: "local", Local: true})
	if _, err := v.SetCredential(local, "KEY", caisson.NewSecret("sk-1")); err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]bool{"sk-1": true, "sk-2": false, "sk-": false, "": false} {
		if same, err := v.MatchCredential(local, "KEY", caisson.NewSecret(value)); same != want || err != nil {
			t.Errorf("%q: %v, %v", value, same, err)
		}
	}
	other := caisson.WithCaller(t.Context(), caisson.Caller{Account: "team-b", Local: true})
	if _, err := v.MatchCredential(other, "KEY", caisson.NewSecret("sk-1")); caisson.KindOf(err) != caisson.NotFound {
		t.Errorf("another account: %v", err)
	}
	token := caisson.WithCaller(t.Context(), caisson.Caller{Account: "local"})
	if _, err := v.MatchCredential(token, "KEY", caisson.NewSecret("sk-1")); caisson.KindOf(err) != caisson.Denied {
		t.Errorf("over a token: %v", err)
	}
}
