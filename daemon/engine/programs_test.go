package engine

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
	"github.com/caisson-dev/caisson/internal/embedded"
	"github.com/caisson-dev/caisson/internal/testneed"
	gvisorprotocol "github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// shapes are the types that are encoded between the daemon and the programs of a sandbox; protocolFiles, the files with protocols that are
// not only types.
var (
	shapes = []reflect.Type{
		reflect.TypeFor[gvisorprotocol.LaunchRequest](), reflect.TypeFor[gvisorprotocol.LaunchReply](), reflect.TypeFor[task.Task](), reflect.TypeFor[task.Line](),
		reflect.TypeFor[gvisorprotocol.ExecArgs](), reflect.TypeFor[gvisorprotocol.SaveOpts](), reflect.TypeFor[gvisorprotocol.TarOpts](),
		reflect.TypeFor[gvisorprotocol.ReadOpts](), reflect.TypeFor[gvisorprotocol.Process](), reflect.TypeFor[gvisorprotocol.WaitPIDArgs](),
		reflect.TypeFor[gvisorprotocol.SignalArgs](), reflect.TypeFor[gvisorprotocol.TraceSessionArgs](),
	}
	protocolFiles = []string{"guest/guestd/protocol.go", "guest/service/protocol.go", "guest/terminal/protocol.go"}
)

// TestProtocol tests that the messages between the daemon and the programs of a sandbox have not changed since testdata/protocol.txt was
// recorded. After a change that older programs do not support, increase protocol, and minProtocol unless the daemon supports both
// versions. Then record the new state with CAISSON_TEST_UPDATE=1.
func TestProtocol(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	fmt.Fprintf(&b, "protocol %d\n", protocol)
	seen := map[reflect.Type]bool{}
	for _, s := range shapes {
		describe(&b, s, seen)
	}
	for _, name := range protocolFiles {
		files := token.NewFileSet()
		tree, err := parser.ParseFile(files, filepath.Join("../..", name), nil, parser.SkipObjectResolution) // without comments
		if err != nil {
			t.Fatal(err)
		}
		var source bytes.Buffer
		if err := format.Node(&source, files, tree); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %x\n", name, sha256.Sum256(source.Bytes()))
	}
	const golden = "testdata/protocol.txt"
	if os.Getenv("CAISSON_TEST_UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || string(want) != b.String() {
		t.Errorf("the protocol has changed, see the comment of this test: %v\n%s", err, b.String())
	}
}

// TestDocuments tests that the objects that the store keeps as documents have not changed since testdata/documents.txt was recorded. An older
// build would remove the fields that it does not know, so it must refuse the data directory: a change needs a schema that no release has. Add
// a migration, which may consist of a comment, unless the newest one was not released yet. Then record the new state with
// CAISSON_TEST_UPDATE=1.
func TestDocuments(t *testing.T) {
	t.Parallel()
	migrations, err := filepath.Glob("../sqlite/migration/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "schema %d\n", len(migrations))
	seen := map[reflect.Type]bool{}
	for _, s := range []reflect.Type{
		reflect.TypeFor[caisson.Sandbox](), reflect.TypeFor[caisson.Snapshot](), reflect.TypeFor[caisson.Template](), reflect.TypeFor[caisson.Image](),
		reflect.TypeFor[caisson.Agent](), reflect.TypeFor[caisson.Volume](), reflect.TypeFor[caisson.Route](), reflect.TypeFor[caisson.Run](),
		reflect.TypeFor[caisson.Session](), reflect.TypeFor[caisson.Workspace](), reflect.TypeFor[caisson.SyncReceipt](), reflect.TypeFor[caisson.Repo](),
		reflect.TypeFor[caisson.Delivery](),
	} {
		if !seen[s] {
			describe(&b, s, seen)
		}
	}
	const golden = "testdata/documents.txt"
	if os.Getenv("CAISSON_TEST_UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || string(want) != b.String() {
		t.Errorf("stored documents have changed, see the comment of this test: %v\n%s", err, cmp.Diff(string(want), b.String()))
	}
}

// describe writes the fields of a struct, and of those of this module that it contains.
func describe(b *strings.Builder, t reflect.Type, seen map[reflect.Type]bool) {
	seen[t] = true
	fmt.Fprintf(b, "%s\n", t)
	var parts []reflect.Type
	for _, f := range reflect.VisibleFields(t) {
		tag := f.Tag.Get("json")
		if !f.IsExported() || tag == "-" {
			continue
		}
		if !f.Anonymous {
			fmt.Fprintf(b, "\t%s %s %q\n", f.Name, f.Type, tag)
		}
		part := f.Type
		for slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map, reflect.Array}, part.Kind()) {
			part = part.Elem()
		}
		if part.Kind() == reflect.Struct && strings.HasPrefix(part.PkgPath(), "github.com/caisson-dev/") {
			parts = append(parts, part)
		}
	}
	for _, part := range parts {
		if !seen[part] {
			describe(b, part, seen)
		}
	}
}

// TestPrograms tests which sets of programs can be used, and that sets that are not in use are removed.
func TestPrograms(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p, err := openPrograms(dir)
	if caisson.KindOf(err) == caisson.Unavailable {
		testneed.Skip(t, "programs", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	// add stores a set and returns its id.
	add := func(protocol int, content string) string {
		t.Helper()
		m := manifest{Protocol: protocol, SHA256: map[string]string{
			embedded.Sentry: fmt.Sprintf("%x", sha256.Sum256([]byte(content))), embedded.Guestd: fmt.Sprintf("%x", sha256.Sum256([]byte("g"))),
		}}
		at := filepath.Join(dir, m.id())
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		files := map[string]string{
			embedded.Sentry: content, embedded.Guestd: "g",
			manifestFile: fmt.Sprintf(`{"protocol": %d, "sha256": {"sentry": %q, "guestd": %q}}`, protocol, m.SHA256[embedded.Sentry], m.SHA256[embedded.Guestd]),
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return m.id()
	}
	good, unused, newer, changed := add(protocol, "a"), add(protocol, "b"), add(protocol+1, "a"), add(protocol, "c")
	incomplete, forged := add(protocol, "d"), add(protocol, "e")
	write := func(id, name, text string) {
		if err := os.WriteFile(filepath.Join(dir, id, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(changed, embedded.Sentry, "C")
	write(forged, manifestFile, fmt.Sprintf(`{"protocol": %d, "sha256": {}}`, protocol))
	if err := os.Remove(filepath.Join(dir, incomplete, embedded.Guestd)); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{
		p.current: true, good: true, unused: true, newer: false, changed: false, incomplete: false, forged: false, "": false, "..": false, "0123456789abcdef": false,
	} {
		if got := p.Usable(id); got != want {
			t.Errorf("the set %q can be used: %t", id, got)
		}
	}
	for id, want := range map[string]bool{p.current: false, good: false, newer: true, forged: false, "": false, "..": false} {
		if got := p.Newer(id); got != want {
			t.Errorf("the set %q is of a newer build: %t", id, got)
		}
	}
	if set, err := p.Find(good); err != nil || set.Exe != filepath.Join(dir, good, embedded.Sentry) || set.Coder != "" {
		t.Errorf("the programs are %+v, %v", set, err)
	}
	write("", "sentry-0123456789abcdef", "of a build that named files differently")
	if err := p.Collect(map[string]bool{good: true}); err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if name := e.Name(); name != good && name != p.current && name != filepath.Base(p.worker) {
			t.Errorf("%s is left", name)
		}
	}
	if p.Usable(unused) || !p.Usable(good) {
		t.Error("what is in use was removed, or the other one was not")
	}
	// The sentry is unpacked when it is needed. What fails is tried again, and what is not what the binary has is replaced.
	if _, err := os.Stat(p.set.Exe); !os.IsNotExist(err) {
		t.Errorf("the sentry was unpacked before it was needed: %v", err)
	}
	if err := os.Mkdir(p.set.Exe, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Find(p.current); err == nil {
		t.Error("a directory is a program")
	}
	if err := os.Remove(p.set.Exe); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if set, err := p.Find(p.current); err != nil || !hasHash(set.Exe, hashIn(t, embedded.Sentry)) {
			t.Errorf("the sentry was not unpacked: %v", err)
		}
		for _, path := range []string{p.set.Exe, p.set.Guestd} {
			if err := os.WriteFile(path, []byte("x"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if p, err = openPrograms(dir); err != nil {
			t.Fatal(err)
		}
		if !hasHash(p.set.Guestd, hashIn(t, embedded.Guestd)) {
			t.Error("a damaged program was not replaced")
		}
	}
}

// hashIn returns the hash of a program of this build, by its name.
func hashIn(t *testing.T, name string) string {
	t.Helper()
	program, ok := embedded.Find(name)
	if !ok {
		t.Fatalf("this build has no %s", name)
	}
	return program.SHA256
}
