package task

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"
	"unicode/utf8"
)

// FuzzReader: each line that is read can be written and read again with the same result, and is within the limits.
func FuzzReader(f *testing.F) {
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, l := range all() {
		if _, err := w.Write(l); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(b.Bytes())
	f.Add([]byte(end))
	f.Add([]byte(`{"type":"end","error":{"code":"timeout","message":"m"}}` + "\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(bytes.NewReader(in), 1<<20)
		var again bytes.Buffer
		w := NewWriter(&again)
		ended := false
		for {
			l, err := r.Next()
			if err != nil {
				if (err == io.EOF) != ended {
					t.Fatalf("%v, ended %v", err, ended)
				}
				break
			}
			if ended {
				t.Fatal("a line after the end")
			}
			ended = l.Type == LineEnd
			if l.Seq != 0 || !l.At.IsZero() || l.Attempt != 0 || l.Content != "" || l.Child != "" {
				t.Fatalf("a field of the engine's: %+v", l)
			}
			if !utf8.ValidString(l.Delta+l.Result+l.Patch+l.Label+l.Tool+l.CallID) || l.Args != nil && !json.Valid(l.Args) {
				t.Fatalf("%+v", l)
			}
			if _, err := w.Write(l); err != nil {
				t.Fatalf("%+v cannot be written: %v", l, err)
			}
		}
		if ended {
			r := NewReader(&again, 1<<20)
			for {
				if _, err := r.Next(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// FuzzDecode: a decoded task can be encoded and decoded again.
func FuzzDecode(f *testing.F) {
	b, err := Encode(valid())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"driver":"acp","workdir":"/","time":"1s","grace":"1s","output":"1M","tools":{"deny":["x"]}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		k, err := Decode(in)
		if err != nil {
			return
		}
		b, err := Encode(k)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(b); err != nil {
			t.Fatalf("%s: %v", b, err)
		}
	})
}

func FuzzCleanJSON(f *testing.F) {
	f.Add([]byte(`{"a":"\u0000\\u0000"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		if !json.Valid(in) {
			return
		}
		out := CleanJSON(bytes.Clone(in))
		if !json.Valid(out) || checkArgs(out) != nil && len(out) <= MaxArgs {
			t.Fatalf("%q became %q", in, out)
		}
	})
}
