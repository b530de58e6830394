package sqlite

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// keySize is the size of a chain's key in bytes.
const keySize = 32

// chain computes the hashes that make tampering with the record of events detectable. Each event has a keyed hash over itself and
// the hash of the event before it. The head of the chain and the gaps left by trimming are authenticated with the same key.
// Without the key no event can be changed, removed, added or reordered, with one exception: a whole database can be replaced by
// an older copy of itself. Such a replacement is detected only by comparing the head with a later head that was noted elsewhere.
type chain struct{ key []byte }

// storedEvent is a row of the table event.
type storedEvent struct {
	seq     int64 // Number of the event.
	at      int64 // Time of the event in microseconds since 1970.
	account string
	subject string // ID or name of the object that the event is about.
	doc     []byte // The event as a JSON document.
	hash    []byte // Keyed hash of the event and of the hash of the event before it.
}

// head describes the end of the chain.
type head struct {
	seq  int64  // Number of the last event.
	hash []byte // Hash of the last event.
	// flaw describes the first problem that was found when the chain was started, or an event appended or trimmed; "" if there is
	// none. It is never deleted.
	flaw string
	mac  []byte // Keyed hash of seq, hash and flaw, which authenticates them.
}

// gap is the record that the events with the numbers first to last were trimmed: removed because of their age. It is no flaw.
type gap struct {
	first, last int64  // Numbers of the first and the last trimmed event.
	hash, mac   []byte // Hash of the event with the number last; keyed hash that authenticates the other fields.
}

// rootHash returns the hash that takes the place of the previous hash in the hash of the first event.
func rootHash() []byte { return make([]byte, sha256.Size) }

// next returns the hash of the event l if prev is the hash of the event before it.
func (c chain) next(prev []byte, l *storedEvent) []byte {
	return c.sum("event", prev, encodeInt(l.seq), encodeInt(l.at), []byte(l.account), []byte(l.subject), l.doc)
}

// sealHead sets the MAC of h, the end of the chain. The MAC authenticates the other fields.
func (c chain) sealHead(h *head) {
	h.mac = c.sum("head", encodeInt(h.seq), h.hash, []byte(h.flaw))
}

// validHead reports whether h, the end of the chain, was not changed: whether it has the MAC that sealHead sets.
func (c chain) validHead(h head) bool {
	mac := h.mac
	c.sealHead(&h)
	return hmac.Equal(mac, h.mac)
}

// sealGap sets the MAC of g, a record of trimmed events. The MAC authenticates the other fields.
func (c chain) sealGap(g *gap) {
	g.mac = c.sum("gap", encodeInt(g.first), encodeInt(g.last), g.hash)
}

// validGap reports whether g, a record of trimmed events, was not changed: whether it has the MAC that sealGap sets.
func (c chain) validGap(g gap) bool {
	mac := g.mac
	c.sealGap(&g)
	return hmac.Equal(mac, g.mac)
}

// sum returns the keyed hash of label and parts; different labels separate the purposes of hashes. Each part is preceded by its
// length, so that the boundaries of parts are unambiguous.
func (c chain) sum(label string, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, c.key)
	writePart(h, []byte(label))
	for _, p := range parts {
		writePart(h, p)
	}
	return h.Sum(nil)
}

// writePart writes the length of part, and then part, to h.
func writePart(h hash.Hash, part []byte) {
	h.Write(encodeInt(int64(len(part))))
	h.Write(part)
}

// encodeInt returns n as 8 bytes, big-endian.
func encodeInt(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// String returns h in the form that caisson audit head prints.
func (h head) String() string { return strconv.FormatInt(h.seq, 10) + ":" + hex.EncodeToString(h.hash) }

// parseHead parses the output of [head.String].
func parseHead(s string) (head, error) {
	number, sum, _ := strings.Cut(s, ":")
	seq, err := strconv.ParseInt(number, 10, 64)
	hash, hexErr := hex.DecodeString(sum)
	if err != nil || hexErr != nil || seq < 0 || len(hash) != sha256.Size {
		return head{}, caisson.Invalidf("head", "%.100q is not a head as caisson audit head prints it", s)
	}
	return head{seq: seq, hash: hash}, nil
}
