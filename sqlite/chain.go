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

// keySize is the size of the key of a chain in bytes.
const keySize = 32

// chain computes what makes the record of events show tampering. Each event has a hash with a key over itself and the hash
// of the one before. The end of the chain, and what was trimmed from it, are authenticated with the same key. So without
// the key nothing can be changed, removed, added or put in another order, with one exception: a whole database can be
// replaced by an older copy of itself. That is seen only by who has noted a later head.
type chain struct{ key []byte }

// link is an event as it is stored.
type link struct {
	seq     int64
	at      int64
	account string
	subject string
	doc     []byte
	hash    []byte
}

// head is where the chain ends. flaw, unless "", is what was wrong with the chain when it was continued: it stays.
type head struct {
	seq  int64
	hash []byte
	flaw string
	mac  []byte
}

// gap stands for events that were trimmed, first to last, and has the hash of the last of them.
type gap struct {
	first, last int64
	hash, mac   []byte
}

// root is what the first event is chained to.
func root() []byte { return make([]byte, sha256.Size) }

// next returns the hash of l behind an event with the hash prev.
func (c chain) next(prev []byte, l *link) []byte {
	return c.sum("event", prev, number(l.seq), number(l.at), []byte(l.account), []byte(l.subject), l.doc)
}

// sealHead authenticates h.
func (c chain) sealHead(h *head) {
	h.mac = c.sum("head", number(h.seq), h.hash, []byte(h.flaw))
}

func (c chain) validHead(h head) bool {
	mac := h.mac
	c.sealHead(&h)
	return hmac.Equal(mac, h.mac)
}

// sealGap authenticates g.
func (c chain) sealGap(g *gap) {
	g.mac = c.sum("gap", number(g.first), number(g.last), g.hash)
}

func (c chain) validGap(g gap) bool {
	mac := g.mac
	c.sealGap(&g)
	return hmac.Equal(mac, g.mac)
}

// sum is the keyed hash of some parts, each preceded by its length so that they cannot be cut differently.
func (c chain) sum(label string, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, c.key)
	write(h, []byte(label))
	for _, p := range parts {
		write(h, p)
	}
	return h.Sum(nil)
}

func write(h hash.Hash, part []byte) {
	h.Write(number(int64(len(part))))
	h.Write(part)
}

func number(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// String returns h as users note it.
func (h head) String() string { return strconv.FormatInt(h.seq, 10) + ":" + hex.EncodeToString(h.hash) }

// parseHead reads what [head.String] wrote.
func parseHead(s string) (head, error) {
	number, sum, _ := strings.Cut(s, ":")
	seq, err := strconv.ParseInt(number, 10, 64)
	hash, hexErr := hex.DecodeString(sum)
	if err != nil || hexErr != nil || seq < 0 || len(hash) != sha256.Size {
		return head{}, caisson.Invalidf("head", "%.100q is not a head as caisson audit head prints it", s)
	}
	return head{seq: seq, hash: hash}, nil
}
