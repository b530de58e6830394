package remote

import (
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/relay/git"
)

// Protocol is the kind of protocol between the transport process and the remote.
type Protocol string

// The protocols between the transport process and remotes.
const (
	ProtocolHTTP   Protocol = "http"   // smart HTTP: requests of git's HTTP client are forwarded
	ProtocolStream Protocol = "stream" // SSH or a directory of the host: git programs are run at the remote
)

// The protocol of the connection to the transport is HTTP/2 without TLS, over one connection that the git job opens. With
// [ProtocolHTTP] the requests are those of smart HTTP below "/". With [ProtocolStream] they are POSTs to StreamPath followed by
// the name of the program; the bodies are the program's input and output. A failure that is not an answer of the remote has the
// headers LinkKind and LinkMessage, or the trailers of these names if the answer of a stream has begun.
const (
	StreamPath  = "/stream/"
	LinkKind    = "Caisson-Kind"
	LinkMessage = "Caisson-Message"
)

// The git programs at a remote.
const (
	UploadPack  = "git-upload-pack"
	ReceivePack = "git-receive-pack"
)

// HeaderProtocol is the header with the protocol versions that git supports. Programs get its value in the environment.
const HeaderProtocol = "Git-Protocol"

// ValidProtocol reports whether p is a valid value of the header Git-Protocol.
func ValidProtocol(p string) bool {
	return slices.Contains([]string{"", "version=0", "version=1", "version=2"}, p)
}

// linkError returns the error that the transport reports. A kind that a transport does not use becomes Unavailable, and the
// message is cut to one line without control characters.
func linkError(kind, message string) error {
	k := caisson.Kind(kind)
	if !slices.Contains([]caisson.Kind{caisson.Denied, caisson.NotFound, caisson.Unavailable, caisson.Exhausted, caisson.Invalid}, k) {
		k = caisson.Unavailable
	}
	if message = git.OneLine(message, 300); message == "" {
		message = "the remote cannot be reached"
	}
	return caisson.Errorf(k, "%s", message)
}
