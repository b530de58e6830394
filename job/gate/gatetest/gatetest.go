// Package gatetest has helpers for the tests of the gate. It imports no package of the gate.
package gatetest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Must fails the test if err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// OpenDir opens the directory path and closes it when the test ends.
func OpenDir(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	Must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// Write writes text to the file at path.
func Write(t testing.TB, path, text string) {
	t.Helper()
	Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	Must(t, os.WriteFile(path, []byte(text), 0o644))
}

func Mkfifo(path string) error { return unix.Mkfifo(path, 0o644) }

func UnixTime(sec int64) time.Time { return time.Unix(sec, 0) }

// WithSum returns data followed by its SHA-256, which is the format of the gate's own files.
func WithSum(data []byte) []byte {
	h := sha256.Sum256(data)
	return append(bytes.Clone(data), h[:]...)
}

// Own writes a file that belongs to uid, and makes uid the owner of its directory unless that is the root of a tree.
func Own(t *testing.T, uid int, path, content string, mode os.FileMode) {
	t.Helper()
	Write(t, path, content)
	Must(t, os.Chmod(path, mode))
	Must(t, os.Chown(path, uid, uid))
	// A direct child of t.TempDir() is the root of a tree and keeps its owner.
	if dir := filepath.Dir(path); filepath.Base(filepath.Dir(dir)) != "001" {
		Must(t, os.Chown(dir, uid, uid))
	}
}

// TreeText describes everything below dir, with one line for each entry: its path, mode, and content or symlink target.
func TreeText(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	Must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		text, _ := os.Readlink(p)
		if fi.Mode().IsRegular() {
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text = string(data)
		}
		fmt.Fprintf(&b, "%s %v %q\n", p[len(dir):], fi.Mode(), text)
		return nil
	}))
	return b.String()
}

// Seven is a text of seven lines, for tests that change single lines.
const Seven = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n"

// Sample returns n pseudo-random characters of alphabet, which depend only on the arguments. Tests construct secrets with it, so
// that searches for secrets find none in the source code.
func Sample(n int, alphabet string) string {
	rng := rand.New(rand.NewPCG(uint64(n), 7))
	var b strings.Builder
	for range n {
		b.WriteByte(alphabet[rng.IntN(len(alphabet))])
	}
	return b.String()
}

func GithubToken() string { return "ghp" + "_" + Sample(36, Alnum) }

// Alphabets of random characters, as arguments of [Sample].
const (
	Alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	Upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
)
