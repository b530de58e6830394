package lastwrite

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
)

func by(pid uint32) Process {
	return Process{PID: pid, UID: pid + 1000, Command: fmt.Sprint("cmd", pid)}
}

// tableText returns a table as text, oldest record first: path=pid, with the prefix ">" if Moved is set.
func tableText(t *testing.T, table *Table) string {
	t.Helper()
	records, _ := table.List()
	var out []string
	for _, r := range records {
		moved := ""
		if r.Moved {
			moved = ">"
		}
		out = append(out, fmt.Sprintf("%s%s=%d", moved, r.Path, r.PID))
	}
	return strings.Join(out, " ")
}

func TestTable(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*Table)
		want string
	}{
		{"nothing", func(*Table) {}, ""},
		{"the last one", func(t *Table) { t.Wrote("a", by(1)); t.Wrote("b", by(1)); t.Wrote("a", by(2)) }, "b=1 a=2"},
		{"removed", func(t *Table) { t.Wrote("a", by(1)); t.Removed("a", by(2)) }, "a=2"},
		{"made again", func(t *Table) { t.Removed("a", by(2)); t.Wrote("a", by(3)) }, "a=3"},
		{"opened", func(t *Table) { t.Opened("a", by(1)); t.Opened("a", by(2)) }, "a=1"},
		{"opened what was gone", func(t *Table) { t.Removed("a", by(1)); t.Opened("a", by(2)); t.Opened("a", by(3)) }, "a=2"},
		{"opened a directory", func(t *Table) { t.Made("a", by(1)); t.Opened("a", by(2)) }, "a=1"},
		{"opened what has moved", func(t *Table) { t.Renamed("a", "b", false, by(1)); t.Opened("a", by(2)); t.Opened("b", by(3)) }, ">b=1 a=2"},
		{"renamed", func(t *Table) { t.Wrote("a", by(1)); t.Renamed("a", "b", false, by(2)) }, ">b=2 >a=2"},
		{"renamed and written", func(t *Table) { t.Renamed("a", "b", false, by(1)); t.Wrote("b", by(2)) }, ">a=1 b=2"},
		{"renamed to itself", func(t *Table) { t.Wrote("a", by(1)); t.Renamed("a", "a", false, by(2)) }, "a=1"},
		{"swapped", func(t *Table) { t.Wrote("a", by(1)); t.Renamed("a", "b", true, by(2)); t.Opened("a", by(3)) }, ">b=2 >a=2"},
		{"linked", func(t *Table) { t.Wrote("a", by(1)); t.Linked("a", "b", by(2)) }, "a=1 b=2"},
		{"linked and written", func(t *Table) { t.Linked("a", "b", by(1)); t.Wrote("a", by(2)); t.Wrote("c", by(3)) }, "a=2 b=2 c=3"},
		{"linked, and one name gone", func(t *Table) {
			t.Linked("a", "b", by(1))
			t.Removed("a", by(2))
			t.Wrote("a", by(3))
			t.Wrote("b", by(4))
		}, "a=3 b=4"},
		{"links follow a rename", func(t *Table) {
			t.Linked("a", "b", by(1))
			t.Renamed("b", "c", false, by(2))
			t.Wrote("a", by(3))
			t.Wrote("b", by(4))
		}, "a=3 c=3 b=4"},
		{"links follow a swap", func(t *Table) {
			t.Linked("a", "b", by(1))
			t.Renamed("b", "c", true, by(2))
			t.Wrote("a", by(3))
			t.Wrote("b", by(4))
		}, "a=3 c=3 b=4"},
		{"one name over the other", func(t *Table) { t.Linked("a", "b", by(1)); t.Renamed("a", "b", false, by(2)) }, "b=1"},
		{"too long", func(t *Table) {
			t.Wrote(strings.Repeat("x", MaxPath+1), by(1))
			t.Renamed(strings.Repeat("x", MaxPath+1), "b", true, by(2))
		}, ">b=2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var table Table
			c.do(&table)
			got := tableText(t, &table)
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			records, dropped, err := Decode(table.Encode())
			if want, lost := table.List(); err != nil || dropped != lost || len(want) != len(records) || len(want) > 0 && !reflect.DeepEqual(records, want) {
				t.Errorf("decoded: %v, %d, %v; want %v, %d", records, dropped, err, want, lost)
			}
		})
	}
}

// TestBounds checks that the table does not exceed its limits and keeps the newest records.
func TestBounds(t *testing.T) {
	var table Table
	for i := range 100_000 {
		table.Wrote(fmt.Sprint("f", i), by(1))
		table.Wrote("again", by(2))
	}
	records, dropped := table.List()
	if len(records) != MaxPaths || dropped != 100_001-MaxPaths || records[0].Path != fmt.Sprint("f", 100_001-MaxPaths) || records[MaxPaths-1].Path != "again" {
		t.Errorf("%d records, %d dropped, from %q to %q", len(records), dropped, records[0].Path, records[len(records)-1].Path)
	}
	for i := range 3000 {
		table.Renamed(fmt.Sprint(i, strings.Repeat("x", 4000)), fmt.Sprint(i, strings.Repeat("y", 4000)), false, by(3))
	}
	total := 0
	records, _ = table.List()
	for _, r := range records {
		total += len(r.Path)
	}
	if total > MaxBytes || total < MaxBytes*9/10 || len(table.Encode()) > MaxEncoded || table.order.Len() != len(table.entries) || table.bytes != total {
		t.Errorf("%d bytes of paths, %d encoded, %d in order", total, len(table.Encode()), table.order.Len())
	}
	if got, _, err := Decode(table.Encode()); err != nil || len(got) != len(records) {
		t.Errorf("%d of %d, %v", len(got), len(records), err)
	}
}

func TestTogether(t *testing.T) {
	var table Table
	var wg sync.WaitGroup
	for g := range uint32(8) {
		wg.Go(func() {
			for i := range 2000 {
				a, b := fmt.Sprint(i%50), fmt.Sprint(i%37)
				table.Wrote(a, by(g))
				table.Linked(a, b, by(g))
				table.Renamed(b, a, i%2 == 0, by(g))
				table.Removed(b, by(g))
				if i%100 == 0 {
					table.Encode()
				}
			}
		})
	}
	wg.Wait()
	if _, _, err := Decode(table.Encode()); err != nil {
		t.Error(err)
	}
}

// encoded returns an encoded table with the given number of records and the given parts, which need not be valid.
func encoded(count uint32, parts ...string) []byte {
	b := binary.LittleEndian.AppendUint32(append([]byte(magic), make([]byte, 8)...), count)
	return append(b, strings.Join(parts, "")...)
}

func record(flags byte, pid uint32, command, path string) string {
	b := binary.LittleEndian.AppendUint32([]byte{flags}, pid)
	b = append(binary.LittleEndian.AppendUint32(b, 0), byte(len(command)))
	return string(binary.LittleEndian.AppendUint16(b, uint16(len(path)))) + command + path
}

func TestDecodeHostile(t *testing.T) {
	for _, b := range [][]byte{
		nil, []byte(magic), []byte("something else"), encoded(1), encoded(0, "x"), encoded(1<<32 - 1), encoded(MaxPaths + 1),
		encoded(1, record(2, 1, "c", "p")), encoded(1, record(0, 1<<31, "c", "p")), encoded(1, record(0, 1, "0123456789abcdefg", "p")),
		encoded(1, record(0, 1, "c", "p")+"x"), encoded(1, record(0, 1, "c", "p")[:10]), encoded(2, record(0, 1, "c", "p"), record(0, 2, "c", "p")),
		encoded(1, record(0, 1, "c", "../p")), encoded(1, record(0, 1, "c", "/p")), encoded(1, record(0, 1, "c", "p/")), encoded(1, record(0, 1, "c", "p//q")),
		encoded(1, record(0, 1, "c", "p/./q")), encoded(1, record(0, 1, "c", "p\x00q")), encoded(1, record(0, 1, "c", strings.Repeat("p", MaxPath+1))),
		make([]byte, MaxEncoded+1),
	} {
		if got, _, err := Decode(b); err == nil {
			t.Errorf("%.60q is read as %v", b, got)
		}
	}
	got, _, err := Decode(encoded(1, record(1, 1<<30, "a\x1b\n\u202e\xff\\é", "p\n\xff")))
	if err != nil || len(got) != 1 || got[0].Command != `a\u001b\u000a\u202e\xff\u005cé` || got[0].Path != "p\n\xff" || !got[0].Moved {
		t.Errorf("%+v, %v", got, err)
	}
	if got := ShowPath("é\n\\\xff/\xe2\x82"); got != "é\n\\\\xff/\\xe2\\x82" {
		t.Errorf("shown: %q", got)
	}
}

func FuzzDecode(f *testing.F) {
	var table Table
	table.Wrote("a/b", by(1))
	table.Renamed("c", "", false, by(2))
	f.Add(table.Encode())
	f.Add(encoded(1, record(1, 7, "\x1b[0m", "x")))
	f.Fuzz(func(t *testing.T, b []byte) {
		records, _, err := Decode(b)
		if err != nil {
			if records != nil {
				t.Error("records with an error")
			}
			return
		}
		known := map[string]bool{}
		for _, r := range records {
			if known[r.Path] || !validPath(r.Path) || escapeUnprintable(strings.ReplaceAll(r.Command, `\`, "")) != strings.ReplaceAll(r.Command, `\`, "") {
				t.Errorf("%+v", r)
			}
			known[r.Path] = true
		}
	})
}

func BenchmarkWrote(b *testing.B) {
	var table Table
	names := make([]string, 2*MaxPaths)
	for i := range names {
		names[i] = fmt.Sprint("some/directory/file", i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		table.Wrote(names[i%len(names)], by1)
	}
}

var by1 = by(1)
