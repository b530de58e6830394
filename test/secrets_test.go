package test_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// piece is the number of bytes of a key that identify it.
const piece = 16

// forms returns the forms in which keys could have been written: beginning and end of each, in hex, in base64 at any
// offset in a longer text, and in UTF-16.
func forms(keys ...string) [][]byte {
	var list [][]byte
	for _, key := range keys {
		for _, part := range []string{key[:piece], key[len(key)-piece:]} {
			list = append(list, []byte(part), []byte(hex.EncodeToString([]byte(part))), []byte(strings.ToUpper(hex.EncodeToString([]byte(part)))))
			var wide []byte
			for _, c := range []byte(part) {
				wide = append(wide, c, 0)
			}
			list = append(list, wide)
		}
		for shift := range 3 {
			text := base64.StdEncoding.EncodeToString(append(make([]byte, shift), key...))
			list = append(list, []byte(text[4:4+piece]), []byte(strings.NewReplacer("+", "-", "/", "_").Replace(text[4:4+piece])))
		}
	}
	return list
}

// search reads r to its end and returns the texts that it contains and its size.
func search(r io.Reader, texts [][]byte) (found [][]byte, size int64, err error) {
	longest := 0
	for _, text := range texts {
		longest = max(longest, len(text))
	}
	buf, keep := make([]byte, 4<<20), 0
	for {
		n, err := io.ReadFull(r, buf[keep:])
		size += int64(n)
		have := buf[:keep+n]
		texts = slices.DeleteFunc(slices.Clone(texts), func(text []byte) bool {
			there := bytes.Contains(have, text)
			if there {
				found = append(found, text)
			}
			return there
		})
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return found, size, nil
		} else if err != nil {
			return found, size, err
		}
		keep = copy(buf, have[len(have)-longest:])
	}
}

// wantNone fails if r contains one of the texts, and returns the size of r.
func (h *host) wantNone(where string, r io.Reader, texts [][]byte) int64 {
	h.t.Helper()
	found, size, err := search(r, texts)
	if err != nil {
		h.t.Errorf("%s: %v", where, err)
	}
	for _, text := range found {
		h.t.Errorf("a key is in %s, as %q", where, text)
	}
	return size
}

// wantNoneBelow fails if a file below dir contains one of the texts, and returns the total size of the files.
func (h *host) wantNoneBelow(dir string, texts [][]byte) (size int64) {
	h.t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // The file was removed during the search.
			}
			return err
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		if strings.HasPrefix(d.Name(), "core") {
			h.t.Errorf("%s looks like a core file", path)
		}
		size += h.wantNone(path, f, texts)
		return nil
	})
	if err != nil {
		h.t.Error(err)
	}
	return size
}

// wantNoneInProcesses fails if the arguments or the environment of the daemon or of a descendant contains one of the
// texts, or if one of these processes could leave a core file. It returns the number of processes.
func (h *host) wantNoneInProcesses(texts [][]byte) int {
	h.t.Helper()
	pids := append(descendants(h.daemonPID()), h.daemonPID())
	for pid := range h.sandboxProcesses() {
		pids = append(pids, pid)
	}
	for _, pid := range pids {
		for _, name := range []string{"environ", "cmdline"} {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
			if err == nil {
				h.wantNone(fmt.Sprintf("/proc/%d/%s", pid, name), bytes.NewReader(data), texts)
			}
		}
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
		if fields := strings.Fields(lineWith(string(limits), "Max core file size")); err == nil && len(fields) > 4 && fields[4] != "0" {
			h.t.Errorf("process %d may leave core files: %q", pid, fields)
		}
	}
	return len(pids)
}

// descendants returns all descendants of a process.
func descendants(pid int) (list []int) {
	for child := range children(pid) {
		list = append(append(list, child), descendants(child)...)
	}
	return list
}

// lineWith returns the first line of text that starts with words, or "".
func lineWith(text, words string) string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, words) {
			return line
		}
	}
	return ""
}
