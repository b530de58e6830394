package coder

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	maxFile      = 16 << 20 // maximum size of a file that can be edited, in bytes
	maxScan      = 1 << 30  // maximum number of bytes of a file that one call of the tool read reads
	maxLine      = 2000     // number of bytes of a line that the tool read returns
	readLines    = 1000     // default number of lines that a call of the tool read returns
	binaryProbe  = 8 << 10  // bytes at the beginning of a file that are searched for a zero byte, which binary files have
	numberColumn = 8        // estimated number of bytes that the line number, the tab and the newline add to a line
)

// workspace is the directory that the agent works in. Relative paths in tool calls are relative to it.
type workspace string

// path returns the absolute path for a path in a tool call.
func (w workspace) path(name string) (string, error) {
	switch {
	case name == "":
		return "", errors.New("path is empty; give one")
	case strings.ContainsRune(name, 0):
		return "", errors.New("a path cannot have a zero byte in it")
	case name == "~" || strings.HasPrefix(name, "~/"):
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, name[1:]), nil
		}
	}
	if filepath.IsAbs(name) {
		return filepath.Clean(name), nil
	}
	return filepath.Join(string(w), name), nil
}

// openRegular opens a regular file. Anything else, such as a FIFO or a device, is an error and never blocks.
func openRegular(path string, flags int, mode os.FileMode) (*os.File, os.FileInfo, error) {
	// The type is checked after opening, because the file at the path may be replaced between a check and opening it. With
	// O_NONBLOCK, opening a FIFO does not block.
	f, err := os.OpenFile(path, flags|syscall.O_NONBLOCK|syscall.O_NOCTTY, mode)
	if err != nil {
		if errors.Is(err, syscall.ENXIO) {
			err = errors.New(path + " is a FIFO or a socket, not a file")
		}
		return nil, nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = fmt.Errorf("%s is a directory; use list", path)
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is %s, not a file", path, describeType(info.Mode()))
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// describeType returns a description of a file's type that is not regular, such as "a directory".
func describeType(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "something special"
}

// readTool returns the tool read.
func (w workspace) readTool() tool {
	return tool{
		name:   "read",
		about:  "Read a text file. Each line is shown with its number and a tab before it, which are no part of the file.",
		schema: `{"type":"object","properties":{"path":{"type":"string","description":"relative to the workspace, or absolute"},"offset":{"type":"integer","description":"first line, from 1"},"limit":{"type":"integer","description":"number of lines; default 1000"}},"required":["path"]}`,
		run:    w.read,
	}
}

// read executes a call of the tool read.
func (w workspace) read(ctx context.Context, args []byte) result {
	var in struct {
		Path          string `json:"path"`
		Offset, Limit number
	}
	if err := decodeArguments(args, &in); err != nil {
		return failedResult("%v", err)
	}
	path, err := w.path(in.Path)
	if err != nil {
		return failedResult("%v", err)
	}
	f, info, err := openRegular(path, os.O_RDONLY, 0)
	if err != nil {
		return failedResult("%v", err)
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 64<<10)
	if probe, _ := r.Peek(binaryProbe); bytes.IndexByte(probe, 0) >= 0 {
		return failedResult("%s is binary, with %d bytes; look at it with a command in the shell", path, info.Size())
	}
	if in.Limit <= 0 {
		in.Limit = readLines
	}
	text, err := numberLines(ctx, r, int64(max(in.Offset, 1)), int64(in.Limit))
	if err != nil {
		return failedResult("%s: %v", path, err)
	}
	return result{text: text}
}

// numberLines returns count lines of r with their numbers, from line first on. The text is within the limit on a tool result.
func numberLines(ctx context.Context, r *bufio.Reader, first, count int64) (string, error) {
	var out strings.Builder
	last := first + min(count, 1<<40) - 1
	left := int64(maxScan)
	n := int64(1)
	for ; n <= last; n++ {
		line, whole, err := shortLine(ctx, r, &left)
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", err
		}
		if n < first {
			continue
		}
		text := clean(string(line))
		if whole > int64(len(line)) {
			text += fmt.Sprintf(" [%d bytes of this line left out]", whole-int64(len(line)))
		}
		if out.Len()+len(text)+2*numberColumn > maxResult-200 {
			fmt.Fprintf(&out, "[there is more; go on with offset %d]\n", n)
			return out.String(), nil
		}
		fmt.Fprintf(&out, "%6d\t%s\n", n, text)
	}
	switch {
	case n == 1:
		return "[the file is empty]", nil
	case out.Len() == 0:
		return "", fmt.Errorf("there are only %d lines", n-1)
	case n > last:
		if _, err := r.Peek(1); err == nil {
			fmt.Fprintf(&out, "[there is more; go on with offset %d]\n", n)
		}
	}
	return out.String(), nil
}

// shortLine reads a line and returns its first maxLine bytes, without the line ending, and its whole length in bytes. It reduces
// *left by the number of bytes read, and fails if *left becomes negative.
func shortLine(ctx context.Context, r *bufio.Reader, left *int64) (line []byte, whole int64, err error) {
	for {
		part, err := r.ReadSlice('\n')
		*left -= int64(len(part))
		if *left < 0 {
			return nil, 0, fmt.Errorf("the line is further into the file than the %d bytes that are read; use a command in the shell", int64(maxScan))
		}
		if ctx.Err() != nil {
			return nil, 0, context.Cause(ctx)
		}
		if err == io.EOF && whole == 0 && len(part) == 0 {
			return nil, 0, io.EOF
		}
		ended := err == nil
		if ended {
			part = bytes.TrimSuffix(part[:len(part)-1], []byte("\r"))
		}
		whole += int64(len(part))
		line = append(line, part[:min(len(part), maxLine-len(line))]...)
		switch {
		case ended || err == io.EOF:
			return line, whole, nil
		case err != bufio.ErrBufferFull:
			return nil, 0, err
		}
	}
}

// writeTool returns the tool write.
func (w workspace) writeTool() tool {
	return tool{
		name:   "write",
		about:  "Write a file, replacing what is there; directories are made as needed. To change part of a file use edit.",
		schema: `{"type":"object","properties":{"path":{"type":"string"},"content":{"type":"string"}},"required":["path","content"]}`,
		run:    w.write,
	}
}

// write executes a call of the tool write.
func (w workspace) write(_ context.Context, args []byte) result {
	var in struct {
		Path    string  `json:"path"`
		Content *string `json:"content"`
	}
	if err := decodeArguments(args, &in); err != nil {
		return failedResult("%v", err)
	}
	path, err := w.path(in.Path)
	if err != nil {
		return failedResult("%v", err)
	}
	if in.Content == nil {
		return failedResult("content is missing; give all of the file")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return failedResult("%v", err)
	}
	_, err = os.Lstat(path)
	isNew := errors.Is(err, fs.ErrNotExist)
	if err := overwrite(path, []byte(*in.Content), os.O_CREATE); err != nil {
		return failedResult("%v", err)
	}
	word := "Replaced"
	if isNew {
		word = "Created"
	}
	return result{text: fmt.Sprintf("%s %s: %d lines, %d bytes.", word, path, strings.Count(*in.Content, "\n"), len(*in.Content)), changed: true}
}

// overwrite replaces the content of a file, but not its inode, mode, owner and links. flags are additional flags for opening it.
func overwrite(path string, data []byte, flags int) error {
	f, _, err := openRegular(path, os.O_WRONLY|flags, 0o666)
	if err != nil {
		return err
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.Write(data)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// readEditable returns the content of a file. Returns an error if the file is binary or larger than maxFile.
func readEditable(path string) (string, error) {
	f, info, err := openRegular(path, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return "", err
	case len(b) > maxFile:
		return "", fmt.Errorf("%s has %d bytes, more than can be edited; use a command in the shell", path, info.Size())
	case bytes.IndexByte(b, 0) >= 0:
		return "", fmt.Errorf("%s is binary; use a command in the shell", path)
	}
	return string(b), nil
}
