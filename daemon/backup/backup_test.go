package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// state is what the data directories of these tests have: contents by path, "/" at the end of the path of a directory, → before the target of
// a symlink. The values of what is in no archive begin with "not".
var state = map[string]string{
	"caisson.db": "not the copy", "audit.key": "a", "credential.key": "c", "ledger/": "", "ledger/jn-1.journal": "calls", "instance": "not i",
	"lock": "not l", "sandboxes/": "not", "sandboxes/sb-1/": "not", "sandboxes/sb-1/files.tar": "not f", "programs/": "not", "programs/p": "not p",
	"workspaces/": "", "workspaces/ws-1/": "", "workspaces/ws-1/manifest": "m", "workspaces/ws-1/layers/": "not", "workspaces/ws-1/layers/x": "not x",
	"workspaces/ws-1/saved/": "", "workspaces/ws-1/saved/rc-1/": "", "workspaces/ws-1/saved/rc-1/link": "→../../../../../../etc/passwd",
	"workspaces/ws-1/saved/rc-1/journal": "j", "workspaces/ws-1/saved/link": "→not",
	"relay/": "", "relay/local/": "", "relay/local/web/": "", "relay/local/web/mirror/": "not", "relay/local/web/mirror/HEAD": "not h",
	"relay/local/web/stores/": "", "relay/local/web/stores/sb-1/": "", "relay/local/web/stores/sb-1/HEAD": "ref", "relay/local/web/stores/sb-1.json": "{}",
}

// makeState writes state below dir.
func makeState(t *testing.T, dir string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(state)) {
		path := filepath.Join(dir, name)
		var err error
		if target, ok := strings.CutPrefix(state[name], "→"); ok {
			err = os.Symlink(target, path)
		} else if strings.HasSuffix(name, "/") {
			err = os.Mkdir(path, 0o700)
		} else {
			err = os.WriteFile(path, []byte(state[name]), 0o640)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// stateOf reads what makeState writes.
func stateOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		switch {
		case err != nil:
		case d.IsDir():
			got[name+"/"] = ""
		case d.Type() == fs.ModeSymlink:
			got[name], err = os.Readlink(path)
			got[name] = "→" + got[name]
		default:
			var data []byte
			data, err = os.ReadFile(path)
			got[name] = string(data)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// archive returns a backup of state.
func archive(t testing.TB, data string) []byte {
	t.Helper()
	side := t.TempDir()
	root, err := os.OpenRoot(data)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := errors.Join(os.WriteFile(filepath.Join(side, "store"), []byte("the copy"), 0o600), os.Mkdir(filepath.Join(side, "agents"), 0o700),
		os.WriteFile(filepath.Join(side, "agents", "x.yaml"), []byte("id: x"), 0o600), os.WriteFile(filepath.Join(side, "c"), []byte("logLevel: info"), 0o600)); err != nil {
		t.Fatal(err)
	}
	store, err := os.Open(filepath.Join(side, "store"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var b bytes.Buffer
	s := Source{Header: Header{Version: "v1", Schema: 7}, Data: root, Store: store, Config: filepath.Join(side, "c"), Agents: filepath.Join(side, "agents")}
	if err := Write(context.Background(), &b, s); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func unchecked(context.Context, string, *Header) error { return nil }

// TestRoundTrip tests that a restored directory has what a backup has, and nothing else.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "data")
	makeState(t, from)
	if os.Geteuid() == 0 {
		if err := os.Lchown(filepath.Join(from, "workspaces/ws-1/saved/rc-1/journal"), 1234, 5678); err != nil {
			t.Fatal(err)
		}
	}
	checked := ""
	h, m, err := Restore(t.Context(), bytes.NewReader(archive(t, from)), to, func(_ context.Context, dir string, h *Header) error {
		checked = fmt.Sprint(filepath.Dir(dir) == filepath.Dir(to), h.Schema)
		return nil
	})
	if err != nil || checked != "true 7" {
		t.Fatalf("%v; checked: %s", err, checked)
	}
	want := map[string]string{"restored/": "", "restored/config.yaml": "logLevel: info", "restored/agents/": "", "restored/agents/x.yaml": "id: x"}
	for name, content := range state {
		if !strings.HasPrefix(strings.TrimPrefix(content, "→"), "not") {
			want[name] = content
		}
	}
	want["caisson.db"] = "the copy"
	if diff := cmp.Diff(want, stateOf(t, to)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if h.Version != "v1" || !h.CredentialKey || m.Entries != int64(len(want)-1) {
		t.Errorf("%+v, %+v", h, m)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(to, "workspaces/ws-1/saved/rc-1/journal"), &st); err != nil || st.Mode&0o7777 != 0o640 || os.Geteuid() == 0 && (st.Uid != 1234 || st.Gid != 5678) {
		t.Errorf("the journal has mode %o and belongs to %d:%d; %v", st.Mode, st.Uid, st.Gid, err)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v; %v", info.Mode(), err)
	}
}

// An item is an entry of an archive that a test makes.
type item struct {
	tar.Header
	content string
}

func file(name, content string) item {
	return item{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(content))}, content}
}

func directory(name string) item {
	return item{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o700}, ""}
}

func special(kind byte, name, target string) item {
	return item{tar.Header{Typeflag: kind, Name: name, Mode: 0o600, Linkname: target}, ""}
}

// forge returns an archive of these entries, with a header, a store and a manifest that has the right checksum if possible.
func forge(t testing.TB, head any, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	put := func(i item) {
		if err := w.WriteHeader(&i.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, i.content); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(head)
	if err != nil {
		t.Fatal(err)
	}
	put(file(headerName, string(text)))
	sum := newTally()
	for _, i := range append([]item{file(dataDir+"/"+StoreName, "s")}, items...) {
		put(i)
		e := &entry{name: strings.TrimSuffix(i.Name, "/"), mode: fs.FileMode(i.Mode), uid: i.Uid, gid: i.Gid, size: i.Size}
		switch i.Typeflag {
		case tar.TypeDir:
			e.mode |= fs.ModeDir
		case tar.TypeSymlink:
			e.mode |= fs.ModeSymlink
			e.target = i.Linkname
		}
		sum.begin(e)
		sum.hash.Write([]byte(i.content))
	}
	h, _ := head.(Header)
	end, err := sum.end(&h)
	if err != nil {
		t.Fatal(err)
	}
	if text, err = json.Marshal(end); err != nil {
		t.Fatal(err)
	}
	put(file(manifestName, string(text)))
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

var good = Header{Format: format, Version: "v1", Schema: 7}

// saved are the directories in which symlinks may be.
var saved = []item{directory("data/workspaces/"), directory("data/workspaces/w/"), directory("data/workspaces/w/saved/"), directory("data/workspaces/w/saved/r/")}

// packed compresses a tar archive.
func packed(t testing.TB, raw []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return z.EncodeAll(raw, nil)
}

// unpacked is the opposite of packed.
func unpacked(t testing.TB, archive []byte) []byte {
	t.Helper()
	z, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := z.DecodeAll(archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestHostileArchives tests that what is no archive of Write is refused with a reason, and that nothing is left then.
func TestHostileArchives(t *testing.T) {
	t.Parallel()
	whole := forge(t, good, append(slices.Clone(saved), special(tar.TypeSymlink, "data/workspaces/w/saved/r/l", "/etc"))...)
	raw := unpacked(t, whole)
	owned := func(i item, uid, gid int) item {
		i.Uid, i.Gid = uid, gid
		return i
	}
	moded := func(i item, mode int64) item {
		i.Mode = mode
		return i
	}
	for name, c := range map[string]struct {
		archive []byte
		want    string // part of the message; "" if it is good
	}{
		"good":                         {whole, ""},
		"nothing":                      {nil, "not complete"},
		"text":                         {[]byte("hello, world"), "no archive"},
		"gzip":                         {[]byte("\x1f\x8b\x08\x00"), "no archive"},
		"tar without zstd":             {raw, "no archive"},
		"another archive":              {packed(t, unpacked(t, whole)[1024:]), "no archive"},
		"cut":                          {whole[:len(whole)/2], "not complete"},
		"cut before the manifest":      {packed(t, raw[:bytes.Index(raw, []byte(manifestName))]), "not complete"},
		"cut in a file":                {packed(t, raw[:bytes.Index(raw, []byte(StoreName))+512]), "not complete"},
		"longer":                       {append(slices.Clone(whole), packed(t, []byte("more"))...), "follows the end"},
		"longer tar":                   {packed(t, append(raw[:len(raw)-1024:len(raw)-1024], raw...)), "follows the end"},
		"garbage behind":               {append(slices.Clone(whole), "garbage"...), "follows the end"},
		"changed target":               {packed(t, bytes.Replace(raw, []byte("/etc"), []byte("/tmp"), 1)), "damaged"},
		"changed content":              {packed(t, bytes.Replace(raw, []byte("s\x00\x00\x00"), []byte("S\x00\x00\x00"), 1)), "checksum"},
		"newer format":                 {forge(t, map[string]any{"format": format + 1, "version": "v9", "what": "else"}), "a newer Caisson (\"v9\"; format 2"},
		"no format":                    {forge(t, Header{}), "has the format 0"},
		"unknown field":                {forge(t, map[string]any{"format": format, "what": "else"}), "another form"},
		"parent":                       {forge(t, good, file("data/../../etc/passwd", "x")), "an invalid name"},
		"parent in a tree":             {forge(t, good, directory("data/runs/"), file("data/runs/../audit.key", "x")), "an invalid name"},
		"absolute":                     {forge(t, good, file("/etc/passwd", "x")), "an invalid name"},
		"double slash":                 {forge(t, good, file("data//audit.key", "x")), "an invalid name"},
		"long name":                    {forge(t, good, directory("data/runs/"), file("data/runs/"+strings.Repeat("x", maxNameSize), "")), "an invalid name"},
		"programs":                     {forge(t, good, directory("data/programs/")), "not a file of a backup"},
		"instance":                     {forge(t, good, file("data/instance", "x")), "not a file of a backup"},
		"layers":                       {forge(t, good, append(slices.Clone(saved), directory("data/workspaces/w/layers/"))...), "not a file of a backup"},
		"elsewhere":                    {forge(t, good, file("x", "x")), "not a file of a backup"},
		"symlink":                      {forge(t, good, special(tar.TypeSymlink, "data/audit.key", "/etc/shadow")), "a symlink"},
		"symlink for a workspace":      {forge(t, good, saved[0], special(tar.TypeSymlink, "data/workspaces/x", "/etc")), "a symlink"},
		"symlink as a directory":       {forge(t, good, append(slices.Clone(saved), special(tar.TypeSymlink, "data/workspaces/w/saved/r/l", ".."), file("data/workspaces/w/saved/r/l/x", "x"))...), "in no directory"},
		"hard link":                    {forge(t, good, special(tar.TypeLink, "data/audit.key", "data/caisson.db")), "no file, directory or symlink"},
		"device":                       {forge(t, good, special(tar.TypeChar, "data/audit.key", "")), "no file, directory or symlink"},
		"block device":                 {forge(t, good, append(slices.Clone(saved), special(tar.TypeBlock, "data/workspaces/w/saved/r/d", ""))...), "no file, directory or symlink"},
		"fifo":                         {forge(t, good, special(tar.TypeFifo, "data/route.key", "")), "no file, directory or symlink"},
		"twice":                        {forge(t, good, file("data/audit.key", "a"), file("data/audit.key", "b")), "occurs twice"},
		"two directories":              {forge(t, good, directory("data/runs/"), directory("data/runs/")), "occurs twice"},
		"without its directory":        {forge(t, good, file("data/runs/x", "x")), "in no directory"},
		"below a file":                 {forge(t, good, directory("data/runs/"), file("data/runs/x", ""), file("data/runs/x/y", "")), "in no directory"},
		"a file for a directory":       {forge(t, good, file("data/runs", "x")), "the wrong type"},
		"a directory for a file":       {forge(t, good, directory("data/audit.key/")), "the wrong type"},
		"another owner":                {forge(t, good, owned(file("data/audit.key", "x"), 1000, 0)), "belongs to the user 1000"},
		"another group":                {forge(t, good, owned(directory("data/runs/"), 0, 1000)), "and the group 1000"},
		"negative owner":               {forge(t, good, append(slices.Clone(saved), owned(file("data/workspaces/w/saved/r/f", "x"), -1, 0))...), "belongs to the user -1"},
		"set-id":                       {forge(t, good, append(slices.Clone(saved), moded(file("data/workspaces/w/saved/r/f", "x"), 0o4755))...), "has mode 4755"},
		"larger than the disk":         {packed(t, huge(t, "data/audit.key", 1<<60)), "more disk space than is free"},
		"larger than the disk, sparse": {packed(t, huge(t, "data/runs/x", 1<<62)), "in no directory"},
		"huge manifest":                {packed(t, huge(t, manifestName, maxJSON+1)), "not as it is in a backup"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			_, _, err := Restore(t.Context(), bytes.NewReader(c.archive), filepath.Join(dir, "data"), unchecked)
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			kind := caisson.KindOf(err)
			if err == nil || !strings.Contains(caisson.MessageOf(err), c.want) || kind != caisson.Invalid && kind != caisson.Conflict && kind != caisson.Exhausted {
				t.Errorf("%v, want an error with %q", err, c.want)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left are %v, %v", left, err)
			}
		})
	}
}

// huge returns the beginning of an archive, with an entry that claims a size.
func huge(t testing.TB, name string, size int64) []byte {
	t.Helper()
	raw := unpacked(t, forge(t, good))
	raw = raw[:bytes.Index(raw, []byte(manifestName))]
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: size, Format: tar.FormatPAX}); err != nil {
		t.Fatal(err)
	}
	return append(raw, b.Bytes()...)
}

// TestRestorePlaces tests where a backup is restored, and that a failure leaves nothing.
func TestRestorePlaces(t *testing.T) {
	t.Parallel()
	whole := forge(t, good)
	dir := t.TempDir()
	full, empty := filepath.Join(dir, "full"), filepath.Join(dir, "empty")
	if err := errors.Join(os.Mkdir(full, 0o700), os.WriteFile(filepath.Join(full, "x"), nil, 0o600), os.Mkdir(empty, 0o755)); err != nil {
		t.Fatal(err)
	}
	for place, want := range map[string]string{
		full: "is not empty", filepath.Join(full, "x"): "cannot be a data directory", filepath.Join(dir, "no", "data"): "does not exist; make it first",
	} {
		if _, _, err := Restore(t.Context(), bytes.NewReader(whole), place, unchecked); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", place, err, want)
		}
	}
	refused := errors.New("refused")
	if _, _, err := Restore(t.Context(), bytes.NewReader(whole), empty, func(context.Context, string, *Header) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("after a check that fails: %v", err)
	}
	// What comes into the directory meanwhile is not replaced.
	late := filepath.Join(empty, "late")
	if _, _, err := Restore(t.Context(), bytes.NewReader(whole), empty, func(context.Context, string, *Header) error { return os.Mkdir(late, 0o700) }); caisson.KindOf(err) != caisson.Conflict {
		t.Errorf("into a directory that is used meanwhile: %v", err)
	}
	if err := os.Remove(late); err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Restore(cancelled, bytes.NewReader(whole), empty, unchecked); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	broken := io.MultiReader(bytes.NewReader(whole[:20]), failing{})
	if _, _, err := Restore(t.Context(), broken, empty, unchecked); !errors.Is(err, unix.EIO) {
		t.Errorf("from a file that cannot be read: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("left are %v, %v", left, err)
	}
	if _, _, err := Restore(t.Context(), bytes.NewReader(whole), empty, unchecked); err != nil {
		t.Errorf("into an empty directory: %v", err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: "x", Err: unix.EIO}
}

// TestWriteFails tests that an error of the file that is written to is returned.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	store, err := os.Create(filepath.Join(dir, "copy"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if err := Write(t.Context(), full, Source{Data: root, Store: store}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("to a full disk: %v", err)
	}
}

// FuzzRestore tests that whatever is restored is below the directory, and that an archive that is verified can be restored.
func FuzzRestore(f *testing.F) {
	f.Add(unpacked(f, forge(f, good)))
	f.Add(unpacked(f, forge(f, good, append(slices.Clone(saved), special(tar.TypeSymlink, "data/workspaces/w/saved/r/l", "/etc"))...)))
	f.Add(unpacked(f, forge(f, good, file("data/../x", "x"))))
	f.Add(huge(f, "data/audit.key", 1<<40))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		archive := packed(t, raw)
		dir := t.TempDir()
		_, _, verified := Verify(t.Context(), bytes.NewReader(archive))
		_, _, err := Restore(t.Context(), bytes.NewReader(archive), filepath.Join(dir, "data"), unchecked)
		if (verified == nil) != (err == nil) && caisson.KindOf(err) == caisson.Invalid {
			t.Errorf("verified: %v; restored: %v", verified, err)
		}
		left, dirErr := os.ReadDir(dir)
		if dirErr != nil || err != nil && len(left) > 0 || err == nil && len(left) != 1 {
			t.Errorf("left are %v, %v", left, dirErr)
		}
	})
}
