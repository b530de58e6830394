package gate

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

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openTestDir(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	check(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func write(t testing.TB, path, text string) {
	t.Helper()
	check(t, os.MkdirAll(filepath.Dir(path), 0o755))
	check(t, os.WriteFile(path, []byte(text), 0o644))
}

func mkfifo(path string) error { return unix.Mkfifo(path, 0o644) }

func unixTime(sec int64) time.Time { return time.Unix(sec, 0) }

func withSum(data []byte) []byte {
	h := sha256.Sum256(data)
	return append(bytes.Clone(data), h[:]...)
}

// own writes a file that belongs to uid.
func own(t *testing.T, uid int, path, content string, mode os.FileMode) {
	t.Helper()
	write(t, path, content)
	check(t, os.Chmod(path, mode))
	check(t, os.Chown(path, uid, uid))
	if dir := filepath.Dir(path); filepath.Base(filepath.Dir(dir)) != "001" {
		check(t, os.Chown(dir, uid, uid))
	}
}

// treeText is all that can be seen of a tree, but for times and owners.
func treeText(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	check(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
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

const seven = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n"

// sample is random text of an alphabet. Secrets of tests are put together when they run, so that nothing finds them here.
func sample(n int, alphabet string) string {
	rng := rand.New(rand.NewPCG(uint64(n), 7))
	var b strings.Builder
	for range n {
		b.WriteByte(alphabet[rng.IntN(len(alphabet))])
	}
	return b.String()
}

func githubToken() string { return "ghp" + "_" + sample(36, alnum) }

// Alphabets for sample.
const (
	alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
)
