package front

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// jobs returns a server whose job is a function.
func jobs(t testing.TB, job func(req Request, conn *net.UnixConn), change ...func(*handler)) *httptest.Server {
	t.Helper()
	h := Handler(func(_ context.Context, in json.RawMessage) (net.Conn, error) {
		var req Request
		if err := json.Unmarshal(in, &req); err != nil {
			return nil, err
		}
		near, file := pair(t)
		defer file.Close()
		far, err := net.FileConn(file)
		if err != nil {
			return nil, err
		}
		go func() {
			defer far.Close()
			job(req, far.(*net.UnixConn))
		}()
		return near, nil
	}).(*handler)
	for _, c := range change {
		c(h)
	}
	s := httptest.NewUnstartedServer(h)
	s.Config.MaxHeaderBytes = 32 << 10 // as in the wire process
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// echo answers with the request's body.
func echo(req Request, conn *net.UnixConn) {
	b, err := io.ReadAll(conn)
	if err == nil {
		fmt.Fprintf(conn, "%s %s %t %s [%s]", req.Repo, req.Service, req.Advertise, req.Protocol, b)
	}
}

// raw sends text unchanged and returns the complete answer.
func raw(t testing.TB, s *httptest.Server, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	if _, err := io.WriteString(c, text); err != nil {
		return err.Error()
	}
	b, err := io.ReadAll(c)
	if err != nil {
		return string(b) + " then " + err.Error()
	}
	return string(b)
}

const uploadType = "Content-Type: application/x-git-upload-pack-request\r\n"

func TestRequests(t *testing.T) {
	s := jobs(t, echo)
	post := "POST /lib/git-upload-pack HTTP/1.1\r\n"
	for _, row := range []struct{ name, request, want, says string }{
		{"refs", "GET /lib/info/refs?service=git-upload-pack HTTP/1.1\r\n\r\n", "200", "lib upload-pack true  []"},
		{"refs to push", "GET /lib.git/info/refs?service=git-receive-pack HTTP/1.1\r\nGit-Protocol: version=1\r\n\r\n", "200", "lib receive-pack true version=1 []"},
		{"a proxy's form", "GET http://git.caisson.internal/lib/info/refs?service=git-upload-pack HTTP/1.1\r\n\r\n", "200", "lib upload-pack true"},
		{"dumb", "GET /lib/info/refs HTTP/1.1\r\n\r\n", "403", "smart"},
		{"dumb HEAD", "GET /lib/HEAD HTTP/1.1\r\n\r\n", "403", "smart"},
		{"dumb objects", "GET /lib/objects/info/packs HTTP/1.1\r\n\r\n", "403", "smart"},
		{"another service", "GET /lib/info/refs?service=git-upload-archive HTTP/1.1\r\n\r\n", "403", "smart"},
		{"two services", "GET /lib/info/refs?service=git-upload-pack&service=git-receive-pack HTTP/1.1\r\n\r\n", "403", "smart"},
		{"an escaped service", "GET /lib/info/refs?service=git%2dupload-pack HTTP/1.1\r\n\r\n", "403", "smart"},
		{"refs with a body", "GET /lib/info/refs?service=git-upload-pack HTTP/1.1\r\nContent-Length: 4\r\n\r\n0000", "400", "no body"},
		{"refs by POST", "POST /lib/info/refs?service=git-upload-pack HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "405", "use GET"},
		{"refs by HEAD", "HEAD /lib/info/refs?service=git-upload-pack HTTP/1.1\r\n\r\n", "405", ""},
		{"root", "GET / HTTP/1.1\r\n\r\n", "404", "git clone"},
		{"no slash", "OPTIONS * HTTP/1.1\r\n\r\n", "", ""},
		{"tunnel", "CONNECT example.com:443 HTTP/1.1\r\n\r\n", "404", ""},
		{"parent", "GET /../info/refs?service=git-upload-pack HTTP/1.1\r\n\r\n", "404", ""},
		{"parent of one", "GET /lib/../other/info/refs?service=git-upload-pack HTTP/1.1\r\n\r\n", "404", ""},
		{"escaped slash", "GET /lib%2finfo/refs?service=git-upload-pack HTTP/1.1\r\n\r\n", "404", ""},
		{"escaped letter", "GET /%6cib/info/refs?service=git-upload-pack HTTP/1.1\r\n\r\n", "404", ""},
		{"escaped zero", "GET /lib%00/info/refs?service=git-upload-pack HTTP/1.1\r\n\r\n", "404", ""},
		{"slashes", "GET //lib/info/refs?service=git-upload-pack HTTP/1.1\r\n\r\n", "404", ""},
		{"slashes within", "GET /lib//info/refs?service=git-upload-pack HTTP/1.1\r\n\r\n", "404", ""},
		{"capital", "GET /Lib/info/refs?service=git-upload-pack HTTP/1.1\r\n\r\n", "404", ""},
		{"option", "GET /-lib/info/refs?service=git-upload-pack HTTP/1.1\r\n\r\n", "404", ""},
		{"only .git", "GET /.git/info/refs?service=git-upload-pack HTTP/1.1\r\n\r\n", "404", ""},
		{"long", "GET /" + strings.Repeat("a", 65) + "/info/refs?service=git-upload-pack HTTP/1.1\r\n\r\n", "404", ""},
		{"backslash", "GET /..\\lib/info/refs?service=git-upload-pack HTTP/1.1\r\n\r\n", "404", ""},
		{"unknown", "GET /lib/config HTTP/1.1\r\n\r\n", "404", ""},
		{"protocol", "GET /lib/info/refs?service=git-upload-pack HTTP/1.1\r\nGit-Protocol: version=2:x=$(id)\r\n\r\n", "400", "version=2"},
		{"protocols", "GET /lib/info/refs?service=git-upload-pack HTTP/1.1\r\nGit-Protocol: version=2\r\nGit-Protocol: version=1\r\n\r\n", "400", "version"},
		{"headers", "GET /lib/info/refs?service=git-upload-pack HTTP/1.1\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", "431", ""},
		{"post", post + uploadType + "Content-Length: 4\r\n\r\n0000", "200", "lib upload-pack false  [0000]"},
		{"post in chunks", post + uploadType + "Transfer-Encoding: chunked\r\n\r\n4\r\n0000\r\n0\r\n\r\n", "200", "[0000]"},
		{"post of a form", post + "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 4\r\n\r\n0000", "415", "content type"},
		{"post of two types", post + uploadType + "Content-Type: text/plain\r\nContent-Length: 4\r\n\r\n0000", "415", "content type"},
		{"post of another service", "POST /lib/git-receive-pack HTTP/1.1\r\n" + uploadType + "Content-Length: 4\r\n\r\n0000", "415", "content type"},
		{"post with a query", "POST /lib/git-upload-pack?x HTTP/1.1\r\n" + uploadType + "Content-Length: 4\r\n\r\n0000", "404", ""},
		{"post by GET", "GET /lib/git-upload-pack HTTP/1.1\r\n\r\n", "405", "use POST"},
		{"deflate", post + uploadType + "Content-Encoding: deflate\r\nContent-Length: 4\r\n\r\n0000", "415", "gzip"},
		{"two encodings", post + uploadType + "Content-Encoding: gzip\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n0000", "415", "gzip"},
		{"no gzip", post + uploadType + "Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n0000", "400", "encoding"},
		{"two lengths", post + uploadType + "Content-Length: 4\r\nContent-Length: 5\r\n\r\n00000", "400", ""},
		{"odd transfer", post + uploadType + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", "501", ""},
		{"odd transfer, hidden", post + uploadType + "Transfer-Encoding : chunked\r\nContent-Length: 4\r\n\r\n0000", "400", ""},
		{"a bad chunk", post + uploadType + "Transfer-Encoding: chunked\r\n\r\nzz\r\n0000\r\n0\r\n\r\n", "", ""},
	} {
		request := strings.Replace(row.request, "HTTP/1.1\r\n", "HTTP/1.1\r\nHost: git.caisson.internal\r\nConnection: close\r\n", 1)
		got := raw(t, s, request)
		if !strings.HasPrefix(got, "HTTP/1.1 "+row.want) || !strings.Contains(got, row.says) {
			t.Errorf("%s: %q, want %s %q", row.name, got, row.want, row.says)
		}
		if strings.HasPrefix(got, "HTTP/1.1 4") && row.says != "" && !strings.Contains(got, "\r\nContent-Type: text/plain") {
			t.Errorf("%s: %q is no text", row.name, got)
		}
	}
}

// TestNotSmuggled checks that a request with two contradictory lengths cannot contain a second request in its body.
func TestNotSmuggled(t *testing.T) {
	s := jobs(t, echo)
	second := "GET /other/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\n\r\n"
	body := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(second), second)
	got := raw(t, s, "POST /lib/git-upload-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+uploadType+
		"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"+body)
	if strings.Count(got, "HTTP/1.1 200") != 1 || strings.Contains(got, "other upload-pack") {
		t.Errorf("%q", got)
	}
}

// post sends a body to a service.
func post(t testing.TB, s *httptest.Server, service, encoding string, body io.Reader) (int, string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/lib/git-"+service, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-git-"+service+"-request")
	if encoding != "" {
		r.Header.Set("Content-Encoding", encoding)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// zipped returns size zeros, compressed, followed by tail.
func zipped(t testing.TB, size int64, tail string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.CopyN(z, zeros{}, size); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	b.WriteString(tail)
	return b.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestEncodings checks that the decompressed size is limited, and that a truncated body is never taken for a complete one.
func TestEncodings(t *testing.T) {
	const wants, unzipped = 1 << 20, 2 << 20
	ends := make(chan error, 1)
	s := jobs(t, func(_ Request, conn *net.UnixConn) {
		n, err := io.Copy(io.Discard, conn)
		if err == nil {
			_, err = fmt.Fprint(conn, n)
		}
		ends <- err
	}, func(h *handler) { h.fetchLimit, h.gzipLimit = wants, unzipped })
	for _, row := range []struct {
		name, service, encoding string
		body                    io.Reader
		status                  int
		want                    string
	}{
		{"gzip", uploadPack, "gzip", bytes.NewReader(zipped(t, 1000, "")), 200, "1000"},
		{"x-gzip", receivePack, "x-gzip", bytes.NewReader(zipped(t, 1000, "")), 200, "1000"},
		{"gzip, just so much", uploadPack, "gzip", bytes.NewReader(zipped(t, wants, "")), 200, fmt.Sprint(wants)},
		{"bomb", uploadPack, "gzip", bytes.NewReader(zipped(t, wants+1, "")), 413, ""},
		{"bomb to push", receivePack, "gzip", bytes.NewReader(zipped(t, unzipped+1, "")), 413, ""},
		{"second stream", uploadPack, "gzip", bytes.NewReader(zipped(t, 10, string(zipped(t, 0, "")))), 400, ""},
		{"rubbish behind", uploadPack, "gzip", bytes.NewReader(zipped(t, 10, "x")), 400, ""},
		{"cut off", uploadPack, "gzip", bytes.NewReader(zipped(t, 1<<20, "")[:500]), 400, ""},
		{"too much, plain", uploadPack, "", io.LimitReader(zeros{}, wants+1), 413, ""},
		{"much to push", receivePack, "", io.LimitReader(zeros{}, 2*unzipped), 200, fmt.Sprint(2 * unzipped)},
		{"nothing", receivePack, "", nil, 200, "0"},
	} {
		status, text, err := post(t, s, row.service, row.encoding, row.body)
		if err != nil || status != row.status || row.want != "" && text != row.want {
			t.Errorf("%s: %d %q, %v, want %d %q", row.name, status, text, err, row.status, row.want)
		}
		if err := <-ends; row.status != 200 && err == nil {
			t.Errorf("%s: the job could answer", row.name)
		}
	}
}

// TestEarlyAnswer checks that the answer of a job that answers before it has read the whole request is delivered, also to a
// client that sends everything first.
func TestEarlyAnswer(t *testing.T) {
	s := jobs(t, func(_ Request, conn *net.UnixConn) {
		io.ReadFull(conn, make([]byte, 10))
		io.WriteString(conn, "no more of this")
	})
	for range 10 {
		status, text, err := post(t, s, receivePack, "", io.LimitReader(zeros{}, 8<<20))
		if err != nil || status != 200 || text != "no more of this" {
			t.Errorf("%d %q, %v", status, text, err)
		}
	}
	const size = 8 << 20
	got := raw(t, s, fmt.Sprintf("POST /lib/git-receive-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+
		"Content-Type: application/x-git-receive-pack-request\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("0", size)))
	if !strings.Contains(got, "no more of this") || !strings.HasSuffix(got, "0\r\n\r\n") {
		t.Errorf("%q", got)
	}
}

// TestRefusalIsHeard checks that a refusal is delivered to a client that sends everything first.
func TestRefusalIsHeard(t *testing.T) {
	s := jobs(t, echo)
	const size = 8 << 20
	got := raw(t, s, fmt.Sprintf("POST /lib/git-receive-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("0", size)))
	if !strings.HasPrefix(got, "HTTP/1.1 415") || !strings.HasSuffix(got, "request\n") {
		t.Errorf("%q", got)
	}
}

// TestContinue checks that "100 Continue" is sent only after the engine has accepted the request.
func TestContinue(t *testing.T) {
	s := jobs(t, echo)
	for path, want := range map[string]string{"/lib/git-upload-pack": "HTTP/1.1 100", "/lib/git-receive-pack": "HTTP/1.1 415"} {
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(2 * time.Minute))
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sExpect: 100-continue\r\nContent-Length: 4\r\n\r\n", path, uploadType)
		in := bufio.NewReader(c)
		if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, want) {
			t.Errorf("%s: %q, %v, want %q", path, line, err, want)
		}
		if want != "HTTP/1.1 100" {
			continue
		}
		io.WriteString(c, "0000")
		if b, err := io.ReadAll(in); err != nil || !strings.Contains(string(b), "[0000]") {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
}

// TestProgress checks that each piece of an answer is forwarded immediately.
func TestProgress(t *testing.T) {
	next := make(chan bool, 1)
	s := jobs(t, func(_ Request, conn *net.UnixConn) {
		for range next {
			io.WriteString(conn, "step\n")
		}
	})
	next <- true
	resp, err := http.Get(s.URL + "/lib/info/refs?service=git-upload-pack")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	for i := range 3 {
		if i > 0 {
			next <- true
		}
		if line, err := in.ReadString('\n'); line != "step\n" || err != nil {
			t.Errorf("%q, %v", line, err)
		}
	}
	close(next)
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

// TestQuick checks that the answer of a job is delivered that exits before the end of the request is sent to it.
func TestQuick(t *testing.T) {
	s := jobs(t, func(_ Request, conn *net.UnixConn) { io.WriteString(conn, "refs") })
	for range 300 {
		if got := raw(t, s, "GET /lib/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); !strings.HasSuffix(got, "4\r\nrefs\r\n0\r\n\r\n") {
			t.Fatalf("%q", got)
		}
	}
}

// TestBreaksOff checks that a missing answer is an error, and that the job's stream is closed when the client disconnects.
func TestBreaksOff(t *testing.T) {
	ended := make(chan error, 1)
	s := jobs(t, func(req Request, conn *net.UnixConn) {
		io.Copy(io.Discard, conn)
		if req.Repo == "endless" {
			_, err := io.Copy(conn, zeros{})
			ended <- err
		}
	})
	resp, err := http.Get(s.URL + "/silent/info/refs?service=git-upload-pack")
	if err != nil || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Fatalf("silent: %+v, %v", resp, err)
	}
	resp.Body.Close()
	for body, want := range map[string]int{"": 200, "0000": 200, "00000000": 503} {
		if status, text, err := post(t, s, receivePack, "", strings.NewReader(body)); status != want || err != nil || want == 200 && text != "" {
			t.Errorf("silent, %q: %d %q, %v, want %d", body, status, text, err, want)
		}
	}
	resp, err = http.Get(s.URL + "/endless/info/refs?service=git-upload-pack")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close() // the client disconnects during the answer
	if err := <-ended; err == nil {
		t.Error("the job was not told that nobody listens")
	}
}

// TestIdle checks that idle exchanges are terminated, and that a partial answer does not look complete.
func TestIdle(t *testing.T) {
	given := make(chan bool)
	ended := make(chan error, 1)
	s := jobs(t, func(req Request, conn *net.UnixConn) {
		if req.Repo == "begins" {
			io.WriteString(conn, "some")
		}
		<-given
		_, err := io.Copy(conn, zeros{}) // ends only when the other side closes the connection
		ended <- err
	}, func(h *handler) { h.idle = 50 * time.Millisecond })
	for _, request := range []string{
		"GET /waits/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /begins/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /waits/git-upload-pack HTTP/1.1\r\nHost: x\r\n" + uploadType + "Content-Length: 4\r\n\r\n0",
		"POST /begins/git-upload-pack HTTP/1.1\r\nHost: x\r\n" + uploadType + "Content-Length: 4\r\n\r\n0000",
	} {
		got := raw(t, s, request)
		if strings.HasSuffix(got, "0\r\n\r\n") || strings.Contains(got, "then") {
			t.Errorf("%q: %q", request, got)
		}
		given <- true
		if err := <-ended; err == nil {
			t.Errorf("%q: the job was not told: %q", request, got)
		}
	}
}

func FuzzSplit(f *testing.F) {
	for _, s := range []string{"/a/info/refs", "/a.git/git-upload-pack", "//", "/../x", "/a%2fb/c", "/.git/x", "/a.git.git/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		repo, rest, ok := splitPath(path)
		if !ok {
			return
		}
		if !isName(repo) || strings.ContainsAny(repo, "/%\\\x00 ") || strings.HasPrefix(repo, ".") || repo == "" || len(repo) > maxName {
			t.Errorf("%q is a name in %q", repo, path)
		}
		if "/"+repo+"/"+rest != path && "/"+repo+".git/"+rest != path {
			t.Errorf("%q is %q and %q", path, repo, rest)
		}
	})
}
