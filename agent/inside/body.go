package inside

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxChunkLine bounds the line before a chunk, in bytes.
const maxChunkLine = 1 << 10

// bodyOf returns the body that follows r's headers. It ends with io.EOF only if it is whole, as far as the headers let one tell.
func bodyOf(r *response, from *bufio.Reader) (io.Reader, error) {
	coding, length := r.header["transfer-encoding"], r.header["content-length"]
	switch {
	case r.header["content-encoding"] != "" && !strings.EqualFold(r.header["content-encoding"], "identity"):
		return nil, errors.New("the answer is compressed, which was not asked for")
	case r.status == 204 || r.status == 304:
		return strings.NewReader(""), nil
	case strings.EqualFold(coding, "chunked"):
		return &chunked{r: from}, nil
	case coding != "":
		return nil, fmt.Errorf("the transfer encoding %.40q is not known", coding)
	case length != "":
		n, err := strconv.ParseUint(length, 10, 62)
		if err != nil {
			return nil, fmt.Errorf("%.40q is no length", length)
		}
		return &sized{r: from, left: int64(n)}, nil
	}
	return from, nil
}

// sized reads a body of known length.
type sized struct {
	r    io.Reader
	left int64
}

func (s *sized) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	n, err := s.r.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	if err == io.EOF && s.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// chunked reads a body in chunks.
type chunked struct {
	r    *bufio.Reader
	left int64 // of the chunk that is being read
	open bool  // a chunk has been begun, and the end of its line is not read
	err  error
}

func (c *chunked) Read(p []byte) (int, error) {
	if c.err == nil && c.left == 0 {
		c.err = c.next()
	}
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	c.err = err
	return n, err
}

// next reads what is between two chunks. The error is io.EOF after the last one.
func (c *chunked) next() error {
	if c.open {
		room := len("\r\n")
		if end, err := readLine(c.r, &room); err != nil || end != "" {
			return errors.Join(errors.New("a chunk is not as long as it said"), err)
		}
	}
	room := maxChunkLine
	head, err := readLine(c.r, &room)
	if err != nil {
		return err
	}
	size, _, _ := strings.Cut(head, ";")
	n, err := strconv.ParseUint(strings.TrimRight(size, " \t"), 16, 62)
	if err != nil {
		return fmt.Errorf("%.40q is no length of a chunk", head)
	}
	if c.left, c.open = int64(n), true; n > 0 {
		return nil
	}
	for room = maxHead; ; {
		trailer, err := readLine(c.r, &room)
		if err != nil {
			return err
		}
		if trailer == "" {
			return io.EOF
		}
	}
}
