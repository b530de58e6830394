package front

import (
	"bufio"
	"compress/gzip"
	"io"
	"net/http"
)

var (
	errTooLarge = &refusal{status: http.StatusRequestEntityTooLarge, msg: "the request is too large"}
	errNotGzip  = &refusal{status: http.StatusBadRequest, msg: "the body does not have the encoding that its header names"}
)

// decodedBody returns the decoded body of a request to service. Its size is limited, except that of uncompressed pushes, whose
// size is limited by the job that receives them.
func (h *handler) decodedBody(r *http.Request, service string) (io.Reader, error) {
	switch coding := r.Header.Get("Content-Encoding"); {
	case coding == "gzip" || coding == "x-gzip":
		most := h.gzipLimit
		if service == uploadPack {
			most = h.fetchLimit
		}
		in := bufio.NewReader(r.Body)
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, errNotGzip
		}
		z.Multistream(false) // otherwise a body of many empty gzip streams would take time without reaching the limit
		return &limitedReader{&singleGzip{z, in}, most}, nil
	case service == uploadPack:
		return &limitedReader{r.Body, h.fetchLimit}, nil
	default:
		return r.Body, nil
	}
}

// singleGzip decompresses one gzip stream, which no data may follow.
type singleGzip struct {
	z  *gzip.Reader  // decompresses in
	in *bufio.Reader // the compressed body
}

// Read reads decompressed data. It returns errNotGzip if the data is malformed or something follows the gzip stream.
func (s *singleGzip) Read(p []byte) (int, error) {
	n, err := s.z.Read(p)
	if err == nil {
		return n, nil
	}
	if err != io.EOF {
		return n, errNotGzip // if the connection was lost, the client does not receive this error
	}
	if _, err := s.in.ReadByte(); err != io.EOF {
		return n, errNotGzip
	}
	return n, io.EOF
}

// A limitedReader reads from r and fails if r has more than left bytes.
type limitedReader struct {
	r    io.Reader
	left int64
}

// Read reads from b.r. It returns errTooLarge as soon as the limit is exceeded.
func (b *limitedReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}
