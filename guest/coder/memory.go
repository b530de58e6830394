package coder

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Limits on stored conversations, in bytes.
const (
	maxMemory  = 8 << 20 // maximum size of the part, at the end of a stored conversation, that is read
	keepMemory = 1 << 20 // size to which a longer conversation is shortened before it is continued
	maxIDName  = 128     // longest id of a conversation that is used in its file's name; for a longer one, the id's hash is used
)

// memory stores one conversation of the agent in a file.
type memory struct{ file *os.File } // file has one line of JSON for each message of the conversation

// validSessionID reports whether id is a valid id of a conversation, or "", which means that there is no conversation.
func validSessionID(id string) bool {
	return len(id) <= 512 && !strings.ContainsFunc(id, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._:-", r)
	})
}

// memoryName returns the name of the file for the conversation id.
func memoryName(id string) string {
	if len(id) > maxIDName {
		sum := sha256.Sum256([]byte(id))
		id = hex.EncodeToString(sum[:])
	}
	return "session-" + id + ".jsonl"
}

// loadMemory opens or creates the file of the conversation id in dir, and returns it with the messages in it.
func loadMemory(dir, id string) (*memory, []message, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("store the conversation: %w", err)
	}
	name := filepath.Join(dir, memoryName(id))
	f, err := openMemory(name)
	if err != nil {
		return nil, nil, fmt.Errorf("open the conversation: %w", err)
	}
	m := &memory{f}
	talk, tidy, err := m.read()
	if err == nil && !tidy {
		err = m.rewrite(talk)
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("read the conversation %s: %w", name, err)
	}
	return m, talk, nil
}

// openMemory opens or creates the file of a conversation, and locks it for this process.
func openMemory(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err == nil {
		err = f.Chmod(0o600)
	}
	if err == nil && syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		err = errors.New("another run of this conversation is under way; wait for its end")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// read returns the messages in the file, shortened and repaired if necessary. tidy reports whether the file contains exactly
// these messages; otherwise it must be rewritten before messages are appended.
func (m *memory) read() (talk []message, tidy bool, err error) {
	info, err := m.file.Stat()
	if err != nil {
		return nil, false, err
	}
	skip := max(0, info.Size()-maxMemory)
	b, err := io.ReadAll(io.NewSectionReader(m.file, skip, maxMemory))
	if err != nil {
		return nil, false, err
	}
	tidy = skip == 0
	if !tidy {
		_, b, _ = bytes.Cut(b, []byte("\n")) // the first line was read in part only
	}
	for line := range bytes.Lines(b) {
		var one message
		// A line that is incomplete, as after a crash of the machine during a write, is skipped.
		if json.Unmarshal(line, &one) != nil || line[len(line)-1] != '\n' {
			tidy = false
			continue
		}
		talk = append(talk, one)
	}
	fixed := repair(talk)
	tidy = tidy && len(fixed) == len(talk)
	if messagesSize(fixed) > keepMemory {
		fixed, _ = trim(fixed, -1, keepMemory)
		tidy = false
	}
	return fixed, tidy, nil
}

// append appends a message to the file with one system call. A crash may leave an incomplete last line, which read skips.
func (m *memory) append(one message) error {
	b, err := encode(one)
	if err == nil {
		_, err = m.file.Write(b)
	}
	return err
}

// rewrite atomically replaces the file by one that contains the conversation talk.
func (m *memory) rewrite(talk []message) error {
	var b bytes.Buffer
	for i := range talk {
		line, err := encode(talk[i])
		if err != nil {
			return err
		}
		b.Write(line)
	}
	name := m.file.Name()
	next := name + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := openMemory(next)
	if err != nil {
		return err
	}
	if _, err = f.Write(b.Bytes()); err == nil {
		err = os.Rename(next, name)
	}
	if err != nil {
		f.Close()
		os.Remove(next)
		return err
	}
	m.file.Close()
	m.file = f
	return nil
}

func (m *memory) close() { m.file.Close() }
