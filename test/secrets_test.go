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

// piece is how many bytes of a key betray it.
const piece = 16

// forms returns in which forms keys could have been written down: beginning and end of each, in hex, in base64 wherever in
// a longer text it begins, and in UTF-16.
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

// search reads r to its end and returns which of the texts were in it, and how many bytes there were.
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

// wantNone fails if one of the texts is in r, and returns how many bytes were looked through.
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

// wantNoneBelow fails if one of the texts is in a file below dir, and returns how many bytes were looked through.
func (h *host) wantNoneBelow(dir string, texts [][]byte) (size int64) {
	h.t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // it went while others were looked through
			}
			return err
		}
		f, err := os.Open(path)
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

// wantNoneInProcesses fails if one of the texts is in the arguments or environment of the daemon or of a process below it, or
// if one of them could leave a core file. It returns how many processes there are.
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

// descendants returns the processes below a process.
func descendants(pid int) (list []int) {
	for child := range children(pid) {
		list = append(append(list, child), descendants(child)...)
	}
	return list
}

// lineWith returns the first line of text that begins with words, "" if none does.
func lineWith(text, words string) string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, words) {
			return line
		}
	}
	return ""
}
