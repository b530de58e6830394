package credential

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testneed"
)

func newKey(t *testing.T) string {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	must(t, err)
	return id.String()
}

// TestPromise2KeyFile tests the states of a key file. Each case replaces the valid one.
func TestPromise2KeyFile(t *testing.T) {
	write := func(mode fs.FileMode, content string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			must(t, os.WriteFile(path, []byte(content), 0o600))
			must(t, os.Chmod(path, mode))
		}
	}
	key := newKey(t)
	for name, tt := range map[string]struct {
		make func(*testing.T, string)
		want string // in the message; "" if the key is valid
	}{
		"private":           {write(0o600, key), ""},
		"read only":         {write(0o400, key), ""},
		"of age-keygen":     {write(0o600, "# created: 2026\n# public key: age1\n\n"+key+"\n"), ""},
		"with CRLF":         {write(0o600, "# x\r\n"+key+"\r\n"), ""},
		"group can read":    {write(0o640, key), "can be read by other users (mode 0640)"},
		"world can read":    {write(0o604, key), "can be read by other users"},
		"group can write":   {write(0o620, key), "can be read by other users"},
		"world can execute": {write(0o601, key), "can be read by other users"},
		"everybody":         {write(0o777, key), "can be read by other users"},
		"empty":             {write(0o600, ""), "is empty"},
		"comments only":     {write(0o600, "# x\n"), "does not hold the key"},
		"a public key":      {write(0o600, "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"), "does not hold the key"},
		"two keys":          {write(0o600, key+"\n"+key), "does not hold the key"},
		"half a key":        {write(0o600, key[:40]), "does not hold the key"},
		"a key with a typo": {write(0o600, key[:40]+"Q"+key[41:]+"Q"), "does not hold the key"},
		"another secret":    {write(0o600, "MARKER"), "does not hold the key"},
		"a long line":       {write(0o600, strings.Repeat("x", maxKeyFile)), "does not hold the key"},
		"huge":              {write(0o600, strings.Repeat("#\n", maxKeyFile)), "too large"},
		"a link": {func(t *testing.T, path string) {
			write(0o600, key)(t, path+".real")
			must(t, os.Symlink(path+".real", path))
		}, "not a link"},
		"a link to nowhere": {func(t *testing.T, path string) { must(t, os.Symlink(path+".real", path)) }, "not a link"},
		"a directory":       {func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o700)) }, "not a regular file"},
		"a FIFO":            {func(t *testing.T, path string) { must(t, unix.Mkfifo(path, 0o600)) }, "not a regular file"},
		"no directory":      {func(t *testing.T, path string) { must(t, os.Remove(filepath.Dir(path))) }, "its directory must exist"},
		"somebody else's": {func(t *testing.T, path string) {
			testneed.Root(t)
			write(0o600, key)(t, path)
			must(t, os.Chown(path, 12345, 0))
		}, "belongs to user 12345"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			path := filepath.Join(t.TempDir(), "credential.key")
			tt.make(t, path)
			v := w.vault(t, KeySource{File: path})
			_, err := v.SetCredential(as(t, "a"), "KEY", caisson.NewSecret(plain))
			if tt.want == "" {
				must(t, err)
				wantValue(t, v, "a", "KEY", plain)
				return
			}
			wantKind(t, err, caisson.Conflict)
			if !strings.Contains(caisson.MessageOf(err), tt.want) || !strings.Contains(caisson.MessageOf(err), path) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if list, err := w.ListCredentials(as(t, "a")); err != nil || len(list) != 0 {
				t.Errorf("stored all the same: %v, %v", list, err)
			}
		})
	}
}

func TestKeyFileIsMade(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	w := newWorld(t)
	if _, err := os.Lstat(w.keyFile()); err == nil {
		t.Error("the key was made before it was needed")
	}
	_, err := w.Secret(t.Context(), "a", "NONE")
	wantKind(t, err, caisson.NotFound)
	set(t, w.Vault, "a", "KEY", plain)
	info, err := os.Lstat(w.keyFile())
	must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("the key file has the mode %v", info.Mode())
	}
	left, err := filepath.Glob(filepath.Join(w.dir, "*.tmp*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestKeyIsLost checks that no value is encrypted with a new key while values of a lost key exist.
func TestKeyIsLost(t *testing.T) {
	w := newWorld(t)
	set(t, w.Vault, "a", "KEY", plain)
	key, err := os.ReadFile(w.keyFile())
	must(t, err)
	must(t, os.Remove(w.keyFile()))
	wantValue(t, w.Vault, "a", "KEY", plain) // the key is cached
	v := w.vault(t, KeySource{File: w.keyFile()})
	for _, err := range []error{
		last(v.Secret(t.Context(), "a", "KEY")), last(v.SetCredential(as(t, "b"), "OTHER", caisson.NewSecret("x"))),
		last(v.RotateCredential(as(t, "a"), "KEY", caisson.NewSecret("x"))),
	} {
		wantKind(t, err, caisson.Conflict)
		if !strings.Contains(caisson.MessageOf(err), "is missing; put it back") {
			t.Error(err)
		}
	}
	must(t, os.WriteFile(w.keyFile(), []byte(newKey(t)), 0o600))
	_, err = v.Secret(t.Context(), "a", "KEY")
	wantKind(t, err, caisson.Conflict)
	if msg := caisson.MessageOf(err); !strings.Contains(msg, "credential KEY was encrypted with another key") || !strings.Contains(msg, "caisson credential rotate KEY") {
		t.Error(err)
	}
	must(t, last(v.RotateCredential(as(t, "a"), "KEY", caisson.NewSecret("new"))))
	wantValue(t, v, "a", "KEY", "new")
	must(t, os.WriteFile(w.keyFile(), key, 0o600))
	_, err = w.vault(t, KeySource{File: w.keyFile()}).Secret(t.Context(), "a", "KEY")
	wantKind(t, err, caisson.Conflict)
	must(t, w.RemoveCredential(as(t, "a"), "KEY"))
	must(t, os.Remove(w.keyFile()))
	set(t, w.vault(t, KeySource{File: w.keyFile()}), "a", "KEY", "fresh") // no value was encrypted with the lost key
}

func TestKeySource(t *testing.T) {
	w := newWorld(t)
	key := caisson.NewSecret(newKey(t))
	for _, bad := range []KeySource{{}, {File: "x", Value: key}, {Value: key, Command: []string{"x"}}, {Command: []string{""}}} {
		if _, err := New(Config{Store: w.store.Credentials(), Key: bad}); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if _, err := New(Config{Key: KeySource{File: "x"}}); err == nil {
		t.Error("a vault without a store")
	}
	v := w.vault(t, KeySource{Value: key})
	set(t, v, "a", "KEY", plain)
	wantValue(t, w.vault(t, KeySource{Value: key}), "a", "KEY", plain)
	err := last(w.vault(t, KeySource{Value: caisson.NewSecret("MARKER")}).Secret(t.Context(), "a", "KEY"))
	wantKind(t, err, caisson.Conflict)
	if !strings.Contains(err.Error(), KeyVariable) {
		t.Error(err)
	}
}

func TestTakeKey(t *testing.T) {
	t.Setenv(KeyVariable, " AGE-SECRET-KEY-1X\n")
	if key := TakeKey(); key.Reveal() != "AGE-SECRET-KEY-1X" {
		t.Error("another key")
	}
	if _, set := os.LookupEnv(KeyVariable); set || !TakeKey().IsZero() {
		t.Error("the key is still in the environment")
	}
}

// TestPromise2KeyCommand runs commands that behave like clients of a key management service.
func TestPromise2KeyCommand(t *testing.T) {
	key := newKey(t)
	script := func(text string) []string { return []string{"/bin/sh", "-c", text, "sh", "MARKER-argument"} }
	t.Setenv("UNRELATED_SECRET", "MARKER")
	for name, tt := range map[string]struct {
		argv []string
		kind caisson.Kind
		want string // in the message; "" if the key is valid
	}{
		"prints the key":       {script("echo " + key), "", ""},
		"prints with comments": {script("echo '# x'; echo; echo " + key), "", ""},
		"sees little":          {script("test -z \"$UNRELATED_SECRET$" + KeyVariable + "\" && test $(env | wc -l) -le 6 && pwd | grep -qx / && echo " + key), "", ""},
		"has no input":         {script("read x && echo MARKER || echo " + key), "", ""},
		"fails":                {script("echo " + key + "; echo MARKER >&2; exit 3"), caisson.Unavailable, "failed: exit status 3"},
		"is killed":            {script("kill -9 $$"), caisson.Unavailable, "failed: signal: killed"},
		"prints nothing":       {script("true"), caisson.Conflict, "printed nothing"},
		"prints something":     {script("echo MARKER"), caisson.Conflict, "does not hold the key"},
		"prints for ever":      {script("while :; do echo MARKER; done"), caisson.Conflict, "printed too much"},
		"is not there":         {[]string{"/nonexistent/kms", "MARKER-argument"}, caisson.Unavailable, "cannot be run"},
		"is no shell's":        {[]string{"echo " + key + "; true"}, caisson.Unavailable, "cannot be run"},
	} {
		t.Run(name, func(t *testing.T) {
			v := newWorld(t).vault(t, KeySource{Command: tt.argv})
			_, err := v.SetCredential(as(t, "a"), "KEY", caisson.NewSecret(plain))
			if tt.want == "" {
				must(t, err)
				wantValue(t, v, "a", "KEY", plain)
				return
			}
			if name == "is no shell's" {
				if caisson.KindOf(err) != tt.kind {
					t.Error(err)
				}
				return
			}
			wantKind(t, err, tt.kind)
			if !strings.Contains(caisson.MessageOf(err), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// TestKeyCommandOnce checks that concurrent requests run the command only once, and that it is run again only after a failure.
func TestKeyCommandOnce(t *testing.T) {
	w := newWorld(t)
	count, broken := filepath.Join(w.dir, "count"), filepath.Join(w.dir, "broken")
	must(t, os.WriteFile(broken, nil, 0o600))
	v := w.vault(t, KeySource{Command: []string{"/bin/sh", "-c", fmt.Sprintf("echo x >> %s; test ! -e %s && echo %s", count, broken, newKey(t))}})
	wantKind(t, last(v.SetCredential(as(t, "a"), "KEY", caisson.NewSecret("x"))), caisson.Unavailable)
	must(t, os.Remove(broken))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if _, err := v.SetCredential(as(t, "a"), fmt.Sprint("K", i), caisson.NewSecret("x")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if b, err := os.ReadFile(count); err != nil || string(b) != "x\nx\n" {
		t.Errorf("the command ran %d times, %v", len(b)/2, err)
	}
}

// TestKeyCommandHangs checks that the command is killed with its request, and that other requests wait no longer than their
// contexts.
func TestKeyCommandHangs(t *testing.T) {
	w := newWorld(t)
	started := filepath.Join(w.dir, "started")
	must(t, unix.Mkfifo(started, 0o600))
	v := w.vault(t, KeySource{Command: []string{"/bin/sh", "-c", "echo x > " + started + "; sleep 1000 & sleep 1000"}})
	ctx, cancel := context.WithCancel(as(t, "a"))
	done := make(chan error, 1)
	go func() {
		_, err := v.SetCredential(ctx, "KEY", caisson.NewSecret("x"))
		done <- err
	}()
	must(t, last(os.ReadFile(started)))
	hasty, stop := context.WithTimeout(as(t, "a"), time.Millisecond)
	defer stop()
	if _, err := v.SetCredential(hasty, "KEY", caisson.NewSecret("x")); err != context.DeadlineExceeded {
		t.Errorf("waiting for another's command: %v", err)
	}
	cancel()
	if err := <-done; err != context.Canceled {
		t.Errorf("a cancelled command: %v", err)
	}
}

func TestLoadKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.key")
	var wg sync.WaitGroup
	keys, mades := make([]caisson.Secret, 8), make([]bool, 8)
	for i := range keys {
		wg.Go(func() {
			var err error
			if keys[i], mades[i], err = LoadKeyFile(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	makers := 0
	for i, key := range keys {
		if mades[i] {
			makers++
		}
		if len(key.Reveal()) != auditKeySize || !key.Equal(keys[0]) {
			t.Error("not everybody has the same key")
		}
	}
	if makers != 1 {
		t.Errorf("%d have made it", makers)
	}
	key, made, err := LoadKeyFile(path)
	if err != nil || made || !key.Equal(keys[0]) {
		t.Errorf("again: made %v, %v", made, err)
	}
	must(t, os.Chmod(path, 0o644))
	_, _, err = LoadKeyFile(path)
	wantKind(t, err, caisson.Conflict)
	for _, content := range []string{"", "zz", strings.Repeat("ab", 31), strings.Repeat("ab", 33), strings.Repeat("g", 64)} {
		must(t, os.WriteFile(path, []byte(content), 0o600))
		must(t, os.Chmod(path, 0o600))
		_, _, err = LoadKeyFile(path)
		wantKind(t, err, caisson.Conflict)
	}
}
