package httpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// breaking are files whose content ends with an error.
type breaking struct{ caisson.Files }

func (breaking) ReadFile(context.Context, string, string, int64, int64) (io.ReadCloser, error) {
	content := strings.NewReader(strings.Repeat("x", 1<<20))
	return io.NopCloser(io.MultiReader(content, iotest.ErrReader(errors.New("disk on fire")))), nil
}

// TestDownloadBreaksOff: the client returns an error if a download is not complete.
func TestDownloadBreaksOff(t *testing.T) {
	s := serve(t, func(cfg *httpapi.Config) { cfg.Files = breaking{cfg.Files} })
	r, err := s.local(t, "").ReadFile(t.Context(), "x", "/x", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if n, err := io.Copy(io.Discard, r); err == nil {
		t.Errorf("it ends after %d bytes", n)
	}
}

// TestUploadRefused: who is still sending when an upload fails gets to know why, and one that waits for leave to send is not asked to.
func TestUploadRefused(t *testing.T) {
	const size = 16 << 20
	s := serve(t)
	for name, tt := range map[string]struct {
		header string
		sends  int
	}{
		"sends all before it reads": {"", size},
		"waits for leave to send":   {"Expect: 100-continue\r\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("unix", s.socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(time.Minute))
			_, err = fmt.Fprintf(conn, "PUT /api/v1/sandboxes/nobody/files/tree?path=/x HTTP/1.1\r\nHost: caisson\r\nContent-Type: %s\r\n%sContent-Length: %d\r\n\r\n",
				protocol.TarType, tt.header, size)
			if err != nil {
				t.Fatal(err)
			}
			if tt.sends > 0 { // to write nothing fails as well once the server has answered and closed the connection
				if n, err := conn.Write(make([]byte, tt.sends)); err != nil {
					t.Fatalf("after %d bytes: %v", n, err)
				}
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var p protocol.Problem
			if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != http.StatusNotFound || p.Code != caisson.NotFound {
				t.Errorf("the answer is %d, %+v, %v", resp.StatusCode, p, err)
			}
		})
	}
}
