package wire

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRecordingGoesOn checks that the size of a file that is opened again counts against the bound.
func TestRecordingGoesOn(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "models.jsonl")
	open := func() *recording {
		t.Helper()
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return newRecording(f)
	}
	r := open()
	if _, err := r.Write([]byte("12345\n")); err != nil {
		t.Fatal(err)
	}
	r.close()
	if err := os.Truncate(name, maxRecording-6); err != nil { // sparse
		t.Fatal(err)
	}
	r = open()
	if _, err := r.Write([]byte("1234567\n")); err == nil {
		t.Error("more was recorded than the file may have")
	}
	if _, err := r.Write([]byte("12345\n")); err != nil {
		t.Error(err)
	}
	r.close()
	r = open()
	defer r.close()
	if _, err := r.Write([]byte("1\n")); err == nil {
		t.Error("a full file has room again")
	}
}
