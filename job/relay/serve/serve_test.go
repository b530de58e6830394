package serve

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
	"github.com/caisson-dev/caisson/internal/socketpair"
	"github.com/caisson-dev/caisson/job/relay/git"
)

// A stand is a store with one file that cannot be compressed.
type stand struct {
	t     *testing.T
	store git.Repo
	tip   string
}

func newStand(t *testing.T, size int) *stand {
	t.Helper()
	bare := gitserver.Dir(t)
	gitserver.Git(t, bare, "init", "-q", "--bare", "-b", "main", bare+"/m")
	noise := make([]byte, size)
	for i, x := 0, uint32(1); i < size; i++ {
		x = x*1664525 + 1013904223
		noise[i] = byte(x >> 24)
	}
	_, tip := gitserver.Seed(t, bare+"/m", map[string]string{"noise": string(noise)})
	view, store := git.Repo{Dir: t.TempDir()}, git.Repo{Dir: t.TempDir()}
	store.View = view.Dir
	refs := []git.Ref{{Name: "refs/heads/main", Commit: tip}}
	if err := git.MakeView(t.Context(), view, bare+"/m", refs); err != nil {
		t.Fatal(err)
	}
	if err := git.MakeStore(store, refs, "refs/heads/main"); err != nil {
		t.Fatal(err)
	}
	return &stand{t: t, store: store, tip: tip}
}

// begin starts to serve a request, and returns the client's end and a channel with the result.
func (s *stand) begin(ctx context.Context, req Request, stall time.Duration) (net.Conn, <-chan error) {
	s.t.Helper()
	near, far, err := socketpair.New()
	if err != nil {
		s.t.Fatal(err)
	}
	client, err := net.FileConn(far)
	far.Close()
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { client.Close(); near.Close() })
	p, err := git.NewClientConn(near)
	if err != nil {
		s.t.Fatal(err)
	}
	p.Stall = stall
	done := make(chan error, 1)
	go func() { done <- serve(ctx, s.store, p, req) }()
	return client, done
}

// clone returns a request of version 2 for all objects.
func (s *stand) clone() string {
	var b bytes.Buffer
	git.WritePktf(&b, "command=fetch\n")
	b.WriteString("0001")
	git.WritePktf(&b, "no-progress\n")
	git.WritePktf(&b, "want %s\n", s.tip)
	git.WritePktf(&b, "done\n")
	git.WriteFlush(&b)
	return b.String()
}

func (s *stand) ask(req Request, body string) (string, error) {
	s.t.Helper()
	c, done := s.begin(s.t.Context(), req, time.Minute)
	io.WriteString(c, body)
	c.(*net.UnixConn).CloseWrite()
	answer, err := io.ReadAll(c)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(answer), <-done
}

func zipped(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, s)
	z.Close()
	return b.String()
}

func TestServeAnswers(t *testing.T) {
	s := newStand(t, 1<<10)
	two := Request{Protocol: "version=2"}
	list := "0014command=ls-refs\n0000"
	tests := []struct {
		name  string
		req   Request
		body  string
		kind  caisson.Kind
		wants string
	}{
		{"advertise", Request{Advertise: true}, "", "", "001e# service=git-upload-pack\n0000"},
		{"advertise 1", Request{Advertise: true, Protocol: "version=1"}, "", "", "001e# service=git-upload-pack\n0000000eversion 1\n"},
		{"advertise 2", Request{Advertise: true, Protocol: "version=2"}, "", "", "000eversion 2\n"},
		{"list", two, list, "", s.tip + " refs/heads/main\n"},
		{"compressed", two, zipped(list), "", s.tip + " refs/heads/main\n"},
		{"half a compressed one", two, zipped(list)[:15], caisson.Invalid, "ERR "},
		{"a bomb", two, zipped(strings.Repeat("0", maxServeRequest+1)), caisson.Exhausted, "ERR "},
		{"clone", two, s.clone(), "", "packfile"},
		{"garbage", two, "garbage", caisson.Invalid, "ERR "},
		{"no command", two, "0014command=rm -rf /0000", caisson.Invalid, "ERR "},
		{"archive", Request{}, "0013git-upload-archive", caisson.Invalid, "ERR "},
		{"no version", Request{Protocol: "version=2:x\nGIT_DIR=/"}, list, caisson.Invalid, "ERR "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			answer, err := s.ask(tt.req, tt.body)
			if !strings.Contains(answer, tt.wants) || (err == nil) != (tt.kind == "") || err != nil && caisson.KindOf(err) != tt.kind {
				t.Errorf("%.200q, %v", answer, err)
			}
			if strings.Contains(answer, s.store.Dir) {
				t.Errorf("the answer has a path of the host: %.300q", answer)
			}
		})
	}
}

func TestServeEndsWithItsClient(t *testing.T) {
	s := newStand(t, 8<<20)
	t.Run("closed", func(t *testing.T) {
		c, done := s.begin(t.Context(), Request{Protocol: "version=2"}, time.Hour)
		io.WriteString(c, s.clone())
		c.(*net.UnixConn).CloseWrite()
		io.ReadFull(c, make([]byte, 10))
		c.Close()
		if err := ended(t, done); err != nil {
			t.Errorf("a client that has gone is no fault: %v", err)
		}
	})
	t.Run("stalled", func(t *testing.T) {
		c, done := s.begin(t.Context(), Request{Protocol: "version=2"}, 200*time.Millisecond)
		io.WriteString(c, s.clone())
		c.(*net.UnixConn).CloseWrite()
		if ended(t, done) == nil {
			t.Error("a client that does not read was served")
		}
	})
	t.Run("silent", func(t *testing.T) {
		_, done := s.begin(t.Context(), Request{Protocol: "version=2"}, 200*time.Millisecond)
		if ended(t, done) == nil {
			t.Error("a request that does not come was served")
		}
	})
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c, done := s.begin(ctx, Request{Protocol: "version=2"}, time.Hour)
		io.WriteString(c, s.clone())
		c.(*net.UnixConn).CloseWrite()
		io.ReadFull(c, make([]byte, 10))
		cancel()
		io.Copy(io.Discard, c)
		ended(t, done)
	})
}

// ended waits for the end of a request.
func ended(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(2 * time.Minute):
		t.Fatal("it goes on and on")
		return nil
	}
}
