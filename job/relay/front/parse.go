package front

import (
	"errors"
	"net/http"
	"strings"

	"github.com/caisson-dev/caisson"
)

// A refusal is an error with its own HTTP status.
type refusal struct {
	status int    // HTTP status
	msg    string // message for the client
	allow  string // value of the Allow header, for status 405
}

func (r *refusal) Error() string { return r.msg }

var (
	errNotFound     = &refusal{status: http.StatusNotFound, msg: "there is nothing here but git repositories: git clone http://git.caisson.internal/NAME"}
	errDumbProtocol = &refusal{status: http.StatusForbidden, msg: "only git's smart HTTP protocol is spoken here; use git 1.6.6 or newer"}
)

// The git services, without the prefix "git-".
const (
	uploadPack  = "upload-pack"
	receivePack = "receive-pack"
)

// parse validates a request, which is untrusted, and converts it to a Request.
func parse(r *http.Request) (*Request, error) {
	repo, rest, ok := splitPath(r.URL.EscapedPath())
	if !ok {
		return nil, errNotFound
	}
	req := &Request{Repo: repo}
	switch {
	case rest == "info/refs":
		req.Advertise = true
	case rest == "git-"+uploadPack, rest == "git-"+receivePack:
		req.Service = strings.TrimPrefix(rest, "git-")
	case rest == "HEAD", strings.HasPrefix(rest, "objects/"):
		return nil, errDumbProtocol
	default:
		return nil, errNotFound
	}
	var err error
	if req.Advertise {
		err = req.parseAdvertise(r)
	} else {
		err = parsePost(r, req.Service)
	}
	if err != nil {
		return nil, err
	}
	req.Protocol, err = protocol(r.Header["Git-Protocol"])
	return req, err
}

// splitPath splits an escaped path into the name of a repository and the rest. Names need no escapes, so a path with escapes is
// not valid. A single ".git" at the end of the name is removed.
func splitPath(path string) (repo, rest string, ok bool) {
	path, ok = strings.CutPrefix(path, "/")
	if !ok || strings.Contains(path, "%") {
		return "", "", false
	}
	repo, rest, ok = strings.Cut(path, "/")
	repo = strings.TrimSuffix(repo, ".git")
	return repo, rest, ok && isName(repo)
}

const maxName = 64 // maximum length of a repository's name in bytes

// isName reports whether s can be a repository's name: lower-case letters and digits, and after the first also '.', '_' and '-'.
func isName(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return true
}

// parseAdvertise validates a request for the list of refs, and sets the service that it names.
func (req *Request) parseAdvertise(r *http.Request) error {
	if r.Method != http.MethodGet {
		return methodNotAllowed(http.MethodGet)
	}
	switch r.URL.RawQuery {
	case "service=git-" + uploadPack:
		req.Service = uploadPack
	case "service=git-" + receivePack:
		req.Service = receivePack
	default:
		return errDumbProtocol
	}
	if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		return &refusal{status: http.StatusBadRequest, msg: "a request for refs has no body"}
	}
	return nil
}

// parsePost validates the method, query and headers of a fetch or push.
func parsePost(r *http.Request, service string) error {
	switch types := r.Header["Content-Type"]; {
	case r.Method != http.MethodPost:
		return methodNotAllowed(http.MethodPost)
	case r.URL.RawQuery != "":
		return errNotFound
	case len(types) != 1 || types[0] != "application/x-git-"+service+"-request":
		return &refusal{status: http.StatusUnsupportedMediaType, msg: "the content type has to be application/x-git-" + service + "-request"}
	}
	switch codings := r.Header["Content-Encoding"]; {
	case len(codings) == 0:
	case len(codings) == 1 && (codings[0] == "gzip" || codings[0] == "x-gzip" || codings[0] == "identity"):
	default:
		return &refusal{status: http.StatusUnsupportedMediaType, msg: "the content encoding has to be gzip, or none"}
	}
	return nil
}

// methodNotAllowed returns the refusal of a request whose method should be the given one.
func methodNotAllowed(method string) error {
	return &refusal{status: http.StatusMethodNotAllowed, msg: "use " + method + " here", allow: method}
}

// protocol validates the values of the header Git-Protocol and returns the version.
func protocol(values []string) (string, error) {
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) == 1 && (values[0] == "version=0" || values[0] == "version=1" || values[0] == "version=2"):
		return values[0], nil
	}
	return "", &refusal{status: http.StatusBadRequest, msg: "the protocol has to be version=0, version=1 or version=2; unset protocol.version"}
}

// statuses maps the kinds of errors to HTTP statuses.
var statuses = map[caisson.Kind]int{
	caisson.Invalid: http.StatusBadRequest, caisson.NotFound: http.StatusNotFound, caisson.Conflict: http.StatusConflict,
	caisson.Denied: http.StatusForbidden,
	// The status is not 401, because git would then prompt for a password.
	caisson.Unauthed:  http.StatusForbidden,
	caisson.Exhausted: http.StatusTooManyRequests, caisson.Unavailable: http.StatusServiceUnavailable,
}

// statusOf returns the HTTP status and the message of an error.
func statusOf(err error) (status int, msg string) {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.status, r.msg
	}
	if status = statuses[caisson.KindOf(err)]; status == 0 {
		status = http.StatusInternalServerError
	}
	return status, caisson.MessageOf(err)
}
