package remote

import (
	"bytes"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/relay/git"
)

// discardLogger returns a logger that discards everything, for servers whose errors are reported elsewhere.
func discardLogger() *log.Logger { return log.New(io.Discard, "", 0) }

// acceptStreams accepts git's connections, which use the git:// protocol, until the listener is closed.
func (f *Forwarder) acceptStreams() {
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.running.Go(func() {
			defer conn.Close()
			if err := f.stream(conn); err != nil {
				f.fail(err)
			}
		})
	}
}

// stream serves one connection: git sends its request in one packet line, and then exchanges data with the program at the remote.
func (f *Forwarder) stream(conn net.Conn) error {
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	line, kind, err := git.NewPktReader(conn, git.PktMax).Next()
	if err != nil || kind != git.PktLine {
		return nil // the client is not git, or git was killed
	}
	conn.SetReadDeadline(time.Time{})
	service, protocol, ok := parseGitRequest(line)
	if !ok {
		return nil
	}
	resp, err := f.open(context.Background(), service, protocol, io.NopCloser(conn))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return copyStream(conn, resp.Body)
}

// open starts a git program at the remote. in is the program's input; open closes it when it is no longer needed.
func (f *Forwarder) open(ctx context.Context, service, protocol string, in io.ReadCloser) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://link"+StreamPath+service, in)
	if err != nil {
		return nil, err
	}
	if protocol != "" {
		req.Header.Set(HeaderProtocol, protocol)
	}
	return f.roundTrip(req, "application/octet-stream")
}

// parseGitRequest parses the first line of the git:// protocol: "git-upload-pack /repo\0host=…\0\0version=2\0".
func parseGitRequest(line []byte) (service, protocol string, ok bool) {
	head, rest, _ := bytes.Cut(line, []byte{0})
	service, _, ok = strings.Cut(string(head), " ")
	if !ok || service != UploadPack && service != ReceivePack {
		return "", "", false
	}
	for part := range bytes.SplitSeq(rest, []byte{0}) {
		if p := string(part); strings.HasPrefix(p, "version=") && ValidProtocol(p) {
			protocol = p
		}
	}
	return service, protocol, true
}

// errStream is returned by List if a git program at the remote sends nothing.
var errStream = caisson.Errorf(caisson.Unavailable, "the remote ended the connection without an answer; check the URL, or try again")
