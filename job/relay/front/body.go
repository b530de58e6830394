package front

import (
	"bufio"
	"compress/gzip"
	"io"
	"net/http"
)

var (
	errTooLarge = &refusal{status: http.StatusRequestEntityTooLarge, msg: "the request is too large"}
	errNotGzip  = &refusal{status: http.StatusBadRequest, msg: "the body is not what its encoding says"}
)

// decoded returns the decoded body of a request. It is limited, except uncompressed packs, which the job limits.
func (h *handler) decoded(r *http.Request, service string) (io.Reader, error) {
	switch coding := r.Header.Get("Content-Encoding"); {
	case coding == "gzip" || coding == "x-gzip":
		most := h.unzipped
		if service == uploadPack {
			most = h.wants
		}
		in := bufio.NewReader(r.Body)
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, errNotGzip
		}
		z.Multistream(false) // otherwise a body of many empty gzip streams would cost time without reaching the limit
		return &bounded{&single{z, in}, most}, nil
	case service == uploadPack:
		return &bounded{r.Body, h.wants}, nil
	default:
		return r.Body, nil
	}
}

// A single reader decompresses one gzip stream, which no data may follow.
type single struct {
	z  *gzip.Reader
	in *bufio.Reader
}

// Read implements [io.Reader].
func (s *single) Read(p []byte) (int, error) {
	n, err := s.z.Read(p)
	if err == nil {
		return n, nil
	}
	if err != io.EOF {
		return n, errNotGzip // or the connection was lost, and the client does not receive this
	}
	if _, err := s.in.ReadByte(); err != io.EOF {
		return n, errNotGzip
	}
	return n, io.EOF
}

// A bounded reader fails if there are more than left bytes.
type bounded struct {
	r    io.Reader
	left int64
}

// Read implements [io.Reader].
func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}
