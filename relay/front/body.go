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

// decoded returns a request's body as the job gets it. It is bounded, but for packs, whose bounds the job knows.
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
		z.Multistream(false) // many empty ones would be work for nothing
		return &bounded{&single{z, in}, most}, nil
	case service == uploadPack:
		return &bounded{r.Body, h.wants}, nil
	default:
		return r.Body, nil
	}
}

// A single is what one stream of gzip unpacks to, behind which there is nothing.
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
		return n, errNotGzip // or the connection broke, and nobody hears this
	}
	if _, err := s.in.ReadByte(); err != io.EOF {
		return n, errNotGzip
	}
	return n, io.EOF
}

// A bounded reader fails when there is more than left.
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
