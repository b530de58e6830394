package worker

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// NewMemFile returns an empty file in memory. The parent gives it to a job that writes a reply longer than a frame to it, and
// then reads the file through an [io.SectionReader], which limits the size.
func NewMemFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// WriteRows writes each row as one line of JSON.
func WriteRows[T any](w io.Writer, rows []T) error {
	out := bufio.NewWriterSize(w, 1<<16)
	enc := json.NewEncoder(out)
	for i := range rows {
		if err := enc.Encode(&rows[i]); err != nil {
			return err
		}
	}
	return out.Flush()
}

// ReadRows reads rows that a job has written, each as one line of JSON. They may be hostile: it decodes strictly, and fails if
// there are more than most rows or a row of more than size bytes.
func ReadRows[T any](r io.Reader, most, size int) ([]T, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, size)
	var rows []T
	for lines.Scan() {
		if len(rows) == most {
			return nil, fmt.Errorf("more than %d rows", most)
		}
		var row T
		if err := Unmarshal(lines.Bytes(), &row); err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, lines.Err()
}
