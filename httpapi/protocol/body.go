package protocol

import (
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// Page is one page of a list, or the whole list if it has no pages.
type Page[T any] struct {
	Items []T        `json:"items"`
	Next  caisson.ID `json:"next,omitempty" doc:"Value of after for the next page; absent on the last"`
}

// StopRequest is the body of a request to stop a sandbox.
type StopRequest struct {
	Grace *caisson.Duration `json:"grace,omitempty" doc:"Time between SIGTERM and SIGKILL; the default is 10s"`
}

// PoolSize is the body of a request to set an agent's pool.
type PoolSize struct {
	Size int `json:"size" minimum:"0" maximum:"64" doc:"How many forks of its warm snapshot are kept ready"`
}

// PolicyTest is the body of a request to test to which targets a policy allows connections.
type PolicyTest struct {
	Policy  caisson.Policy `json:"policy"`
	Targets []string       `json:"targets" nullable:"false" minItems:"1" maxItems:"100" doc:"HOST, HOST:PORT or ADDRESS:PORT, with /udp at the end for udp"`
}

// SandboxRepo is the body of a request that grants a sandbox access to a repository, or delivers the sandbox's commits.
type SandboxRepo struct {
	caisson.RepoRequest
	Dir string `json:"dir,omitempty" maxLength:"4096" doc:"Absolute path of the clone in the sandbox"`
}

// KillRequest is the body of a request to send a signal to a process.
type KillRequest struct {
	PID    int `json:"pid" minimum:"-1" doc:"As seen inside the sandbox; -1 is every process"`
	Signal int `json:"signal" minimum:"1" maximum:"64" doc:"Signal number"`
}

// Numbers of bytes of each output stream that are returned for a [ProcessRequest]. The rest is discarded.
const (
	DefaultOutput = 2 << 20  // bytes that are returned if ProcessRequest.MaxOutput is 0
	MaxOutput     = 16 << 20 // maximum value of ProcessRequest.MaxOutput
)

// ProcessRequest is the body of a request to start a process without an interactive session.
type ProcessRequest struct {
	caisson.ExecRequest
	Input     []byte `json:"input,omitempty" doc:"Standard input"`
	MaxOutput int    `json:"maxOutput,omitempty" minimum:"0" maximum:"16777216" doc:"Bytes of each output stream that are returned; 0 means 2 MiB. The rest is discarded"`
}

// ProcessResult is the outcome of a non-interactive exec.
type ProcessResult struct {
	PID    int                 `json:"pid" doc:"As seen inside the sandbox"`
	Exit   *caisson.ExitStatus `json:"exit,omitempty" doc:"Absent for a detached process, which runs on"`
	Stdout Output              `json:"stdout"`
	Stderr Output              `json:"stderr"`
}

// Output is the output of a process on one stream.
type Output struct {
	Text      string `json:"text,omitempty" doc:"The output, if it is UTF-8 text"`
	Base64    []byte `json:"base64,omitempty" doc:"The output, if it is not UTF-8 text"`
	Size      int64  `json:"size" doc:"Bytes the process wrote, including those not returned"`
	Truncated bool   `json:"truncated,omitempty" doc:"Only the beginning was kept"`
}

// NewOutput returns the Output for a stream of size bytes. kept is the beginning of the stream, which is to be returned.
func NewOutput(kept []byte, size int64) Output {
	o := Output{Size: size, Truncated: size > int64(len(kept))}
	text := kept
	if o.Truncated {
		text = trimPartialRune(kept)
	}
	if utf8.Valid(text) && !longerAsText(text) {
		o.Text = string(text)
	} else {
		o.Base64 = kept
	}
	return o
}

// longerAsText reports whether text would be longer as a JSON string than in base64, because a control character takes six bytes
// in JSON.
func longerAsText(text []byte) bool {
	n := 0
	for _, b := range text {
		if b < 0x20 && b != '\n' && b != '\t' && b != '\r' {
			n += 5
		}
	}
	return n > len(text)/3
}

// trimPartialRune removes an incomplete rune from the end of b.
func trimPartialRune(b []byte) []byte {
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
		}
	}
	return b
}

// Bytes returns the part of the output that was kept.
func (o Output) Bytes() []byte {
	if o.Base64 != nil {
		return o.Base64
	}
	return []byte(o.Text)
}

// MakeDirRequest is the body of a request to create a directory.
type MakeDirRequest struct {
	Path    string `json:"path"`
	Parents bool   `json:"parents,omitempty" doc:"Also create missing parents, and do not fail if it exists"`
}

// MoveRequest is the body of a request to move a file.
type MoveRequest struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// PullRequest is the body of a request to pull an image, as clients encode it; in the encoding of a [caisson.PullRequest] the
// password is redacted. Code that creates a PullRequest must marshal it at once and keep no copy.
type PullRequest struct {
	Reference string `json:"reference"`
	Platform  string `json:"platform,omitempty"`
	Auth      Login  `json:"auth,omitzero"`
	Offline   bool   `json:"offline,omitempty"` // only check whether the image is stored
}

// Login is a [caisson.RegistryAuth] as clients encode it, with its password in plain text.
type Login struct {
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
}

// LoginOf returns the registry login a with its password in plain text.
func LoginOf(a caisson.RegistryAuth) Login {
	return Login{Username: a.Username, Password: a.Password.Reveal()}
}

// Freed is the response to a request to prune images.
type Freed struct {
	Size caisson.Size `json:"size" doc:"Bytes freed on disk"`
}

// TokenRequest is the body of a request that creates a token.
type TokenRequest struct {
	Account string           `json:"account" pattern:"^[a-z][a-z0-9-]{0,31}$" patternDescription:"an account name: lower-case letters, digits and dashes"`
	Name    string           `json:"name" maxLength:"200" doc:"What the token is for"`
	TTL     caisson.Duration `json:"ttl,omitempty" doc:"Expires after this time; 0s means never"`
	SSHKey  string           `json:"sshKey,omitempty" maxLength:"16384" doc:"The token is for this SSH key, a line of authorized_keys without options, and has no secret"`
}

// CredentialValue is the body of a request with the value of a credential, as clients encode it; the server decodes it as a
// [caisson.Secret]. Code that creates a CredentialValue must marshal it at once and keep no copy.
type CredentialValue struct {
	Value string `json:"value"`
}

// Matched is the response to a request that compares a value with that of a credential.
type Matched struct {
	Matches bool `json:"matches"` // the values are equal
}

// NewToken is a token with its secret, which only this response contains.
type NewToken struct {
	Token  *caisson.Token `json:"token"`
	Secret string         `json:"secret" doc:"Empty for the token of an SSH key"`
}

// Handles is the response to an upload of descriptors.
type Handles struct {
	Handles []string `json:"handles,omitempty"` // ids of the received descriptors
	Problem *Problem `json:"problem,omitempty"` // the error; nil for success
}

// MaxHandles is the maximum number of descriptors in one upload.
const MaxHandles = 64

// HandlesUpgrade is the protocol that POST /handles upgrades to: the client sends one byte, the number of descriptors,
// with the descriptors as SCM_RIGHTS; the server answers with [Handles] on one line and closes the connection.
const HandlesUpgrade = "caisson-handles"

// StreamUpgrade is the protocol to which a connection is upgraded for a stream of bytes in both directions. Each direction can be
// closed separately.
const StreamUpgrade = "caisson-stream"
