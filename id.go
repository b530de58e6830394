package caisson

import (
	"crypto/rand"
	"encoding/base32"
	"strings"
)

// An ID is the globally unique name of one object: two lower-case letters for the kind of object, "-", and 16 random characters.
//
// All IDs have the same length because gVisor resolves container ids by prefix, and all are valid host names because a
// sandbox's ID is its host name.
type ID string

// Prefixes of IDs by kind of object.
const (
	SandboxPrefix  = "sb"
	SnapshotPrefix = "sn"
	TokenPrefix    = "tk"
	AccountPrefix  = "ac"
	InstancePrefix = "in" // a data directory
	CallPrefix     = "ca"
	JournalPrefix  = "jr"
	RunPrefix      = "rn"
	SessionPrefix  = "se"
	TerminalPrefix = "tm"
)

// idLen is the length of an ID in bytes: the kind of object, "-", and the random part.
const idLen = 2 + 1 + 16

// idEncoding encodes the random part of an ID.
var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewID returns a new ID with 80 random bits from the kernel's generator.
func NewID(prefix string) ID {
	var b [10]byte
	rand.Read(b[:])
	return ID(prefix + "-" + idEncoding.EncodeToString(b[:]))
}

// ParseID returns s as an ID of the given kind, or an Invalid error.
func ParseID(prefix, s string) (ID, error) {
	rest, ok := strings.CutPrefix(s, prefix+"-")
	if !ok || len(s) != idLen {
		return "", Invalidf("id", "%.40q is not an id of the form %s-xxxxxxxxxxxxxxxx", s, prefix)
	}
	for _, c := range rest {
		if (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return "", Invalidf("id", "%.40q is not an id of the form %s-xxxxxxxxxxxxxxxx", s, prefix)
		}
	}
	return ID(s), nil
}
