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

// chain computes the hashes that make tampering with the record of events detectable. Each event has a keyed hash over
// itself and the hash of the event before it. The head of the chain and the gaps left by trimming are authenticated
// with the same key. Without the key no event can be changed, removed, added or reordered, with one exception: a whole
// database can be replaced by an older copy of itself. That is detected only by comparing with a later head that was
// noted elsewhere.
type chain struct{ key []byte }

// storedEvent is a row of the table event.
type storedEvent struct {
	seq     int64
	at      int64 // Microseconds since 1970.
	account string
	subject string
	doc     []byte // The event as JSON.
	hash    []byte // The result of chain.next.
}

// head describes the end of the chain.
type head struct {
	seq  int64  // Number of the last event.
	hash []byte // Hash of the last event.
	flaw string // Describes the first problem that was found when the chain was continued; never deleted; "" if there is none.
	mac  []byte // Authenticates the other fields, see sealHead.
}

// gap represents the trimmed events with the numbers first to last.
type gap struct {
	first, last int64
	hash, mac   []byte // Hash of the event last; authentication of the other fields, see sealGap.
}

// rootHash returns the hash that the first event is chained to.
func rootHash() []byte { return make([]byte, sha256.Size) }

// next returns the hash of l when it follows an event with the hash prev.
func (c chain) next(prev []byte, l *storedEvent) []byte {
	return c.sum("event", prev, encodeInt(l.seq), encodeInt(l.at), []byte(l.account), []byte(l.subject), l.doc)
}

// sealHead sets the MAC of h.
func (c chain) sealHead(h *head) {
	h.mac = c.sum("head", encodeInt(h.seq), h.hash, []byte(h.flaw))
}

// validHead reports whether h has the MAC that sealHead sets.
func (c chain) validHead(h head) bool {
	mac := h.mac
	c.sealHead(&h)
	return hmac.Equal(mac, h.mac)
}

// sealGap sets the MAC of g.
func (c chain) sealGap(g *gap) {
	g.mac = c.sum("gap", encodeInt(g.first), encodeInt(g.last), g.hash)
}

// validGap reports whether g has the MAC that sealGap sets.
func (c chain) validGap(g gap) bool {
	mac := g.mac
	c.sealGap(&g)
	return hmac.Equal(mac, g.mac)
}

// sum returns the keyed hash of parts. Each part is preceded by its length so that part boundaries are unambiguous.
func (c chain) sum(label string, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, c.key)
	writePart(h, []byte(label))
	for _, p := range parts {
		writePart(h, p)
	}
	return h.Sum(nil)
}

// writePart writes the length of part and part.
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
