package remote

import (
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/relay/git"
)

// A Transport is how a link speaks with the remote.
type Transport string

// The transports.
const (
	TransportHTTP   Transport = "http"   // smart HTTP: the link forwards the three requests there are
	TransportStream Transport = "stream" // SSH, or a directory of the host: the link connects to git's programs
)

// The language of a link: HTTP/2 without TLS, over one connection that the job with git opens. With [TransportHTTP] the requests are
// those of smart HTTP below "/"; with [TransportStream] they are POSTs to StreamPath and the name of the program, whose bodies are
// what goes into it and comes out of it. A failure that is not an answer of the remote has the headers LinkKind and LinkMessage; of a
// stream that has begun they are trailers.
const (
	StreamPath  = "/stream/"
	LinkKind    = "Caisson-Kind"
	LinkMessage = "Caisson-Message"
)

// The programs at the far end of a link.
const (
	UploadPack  = "git-upload-pack"
	ReceivePack = "git-receive-pack"
)

// HeaderProtocol is the header, and so the environment variable, that says which versions of its protocol git knows.
const HeaderProtocol = "Git-Protocol"

// ValidProtocol reports whether p can be told to git as the version of its protocol that is wanted.
func ValidProtocol(p string) bool {
	return slices.Contains([]string{"", "version=0", "version=1", "version=2"}, p)
}

// linkError is the error that a far end reports: its kind is one that links may have, its words are made plain.
func linkError(kind, message string) error {
	k := caisson.Kind(kind)
	if !slices.Contains([]caisson.Kind{caisson.Denied, caisson.NotFound, caisson.Unavailable, caisson.Exhausted, caisson.Invalid}, k) {
		k = caisson.Unavailable
	}
	if message = git.Plain(message, 300); message == "" {
		message = "the remote cannot be reached"
	}
	return caisson.Errorf(k, "%s", message)
}
