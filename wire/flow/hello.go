package flow

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// maxSniff bounds the data that is read before the protocol must be known, in bytes.
const maxSniff = 64 << 10

// An appProtocol is the protocol of a connection.
type appProtocol int

const (
	protoUndecided appProtocol = iota // more data is needed
	protoTLS
	protoHTTP
	protoOther  // neither TLS nor HTTP
	protoDenied // malformed, or not allowed on this port; sniffer.reason tells why
)

// A sniffer detects the protocol of a connection from its first bytes. Its cost is linear in their number, even in small pieces.
type sniffer struct {
	data []byte // the bytes received so far

	// For TLS: nextRecord is the offset in data at which the next record begins; msg is the handshake message received so far.
	nextRecord int
	msg        []byte // the handshake message received so far
	// For text: the first word begins at offset wordStart; the first line does not end before offset scanned.
	wordStart, scanned int
	word               string // the first word, once it is complete

	name   string // the server name if the protocol is protoTLS; "" if there is none
	reason string // why the protocol is protoDenied
}

// Types of TLS records.
const (
	recordChangeCipherSpec = 0x14
	recordAlert            = 0x15
	recordHandshake        = 0x16
	recordData             = 0x17
)

// deny sets the reason of a denial.
func (e *sniffer) deny(reason string) appProtocol {
	e.reason = reason
	return protoDenied
}

// detect returns the protocol of the data so far.
func (e *sniffer) detect() appProtocol {
	if len(e.data) == 0 {
		return protoUndecided
	}
	lang := protoUndecided
	switch e.data[0] {
	case recordHandshake:
		// The major version is 3 in all versions of TLS. Others are denied, because some servers do not check it.
		if len(e.data) > 1 && e.data[1] != 3 {
			return e.deny("the version of the TLS record is none there is")
		}
		lang = e.detectTLS()
	case recordChangeCipherSpec, recordAlert, recordData:
		// Some servers skip a record that is not a handshake, and accept a ClientHello after it.
		return e.deny("a TLS record other than a handshake came before the ClientHello")
	default:
		lang = e.detectText()
	}
	if lang == protoUndecided && len(e.data) >= maxSniff {
		return e.deny("too much data came without the name of a host")
	}
	return lang
}

// isToken reports whether b may be part of an HTTP method.
func isToken(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || strings.IndexByte("!#$%&'*+-.^_`|~", b) >= 0
}

// isSpace reports whether any server might treat b as white space: Python applies Unicode's rules to latin-1.
func isSpace(b byte) bool {
	return b >= '\t' && b <= '\r' || b >= 0x1c && b <= ' ' || b == 0x85 || b == 0xa0
}

// detectText treats more data as HTTP than any server: a known method, or a first line with a version in it, after white space.
func (e *sniffer) detectText() appProtocol {
	for e.word == "" {
		if e.scanned == len(e.data) {
			return protoUndecided
		}
		b := e.data[e.scanned]
		switch {
		case isToken(b):
		case e.scanned > e.wordStart && isSpace(b):
			e.word = string(e.data[e.wordStart:e.scanned])
		case e.scanned == e.wordStart && isSpace(b):
			e.wordStart++
		default:
			return e.notHTTP()
		}
		e.scanned++
	}
	switch e.word {
	case "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "PRI":
		return protoHTTP
	case "PROXY":
		return e.deny("the data after the header of a proxy cannot be checked")
	}
	line := bytes.IndexByte(e.data[e.scanned:], '\n')
	if line < 0 {
		e.scanned = len(e.data)
		return protoUndecided
	}
	if bytes.Contains(bytes.ToUpper(e.data[:e.scanned+line]), []byte("HTTP/")) {
		return protoHTTP
	}
	return protoOther
}

// notHTTP returns the protocol of data that does not begin with a word and white space.
func (e *sniffer) notHTTP() appProtocol {
	const proxy2 = "\r\n\r\n\x00\r\nQUIT\n" // version 2 of the PROXY header
	if n := min(len(e.data), len(proxy2)); string(e.data[:n]) == proxy2[:n] {
		if n < len(proxy2) {
			return protoUndecided
		}
		return e.deny("the data after the header of a proxy cannot be checked")
	}
	return protoOther
}

// A firstLine searches the first line of an unknown protocol for HTTP: some server might accept it as a request to another host,
// even if it does not begin with a known method.
type firstLine struct {
	tail []byte // the end of the data so far, in upper case
	size int    // bytes of the line so far, without white space at its beginning
	done bool   // the line has ended, or has more than maxSniff bytes
}

// isHTTP reports whether the line, of which p is the next part, contains HTTP. A control character ends the line, too.
func (l *firstLine) isHTTP(p []byte) bool {
	const version = "HTTP/"
	if l.done {
		return false
	}
	for l.size == 0 && len(p) > 0 && isSpace(p[0]) {
		p = p[1:]
	}
	end := bytes.IndexFunc(p, func(r rune) bool { return r == '\n' || r < ' ' && !isSpace(byte(r)) })
	if end >= 0 {
		p, l.done = p[:end], true
	}
	l.size += len(p)
	l.done = l.done || l.size > maxSniff
	l.tail = append(l.tail, bytes.ToUpper(p)...)
	if bytes.Contains(l.tail, []byte(version)) {
		return true
	}
	l.tail = append([]byte(nil), l.tail[max(0, len(l.tail)-len(version)+1):]...)
	return false
}

// detectTLS assembles the ClientHello, which may be spread over several records.
func (e *sniffer) detectTLS() appProtocol {
	const (
		recordHeader  = 5
		maxRecord     = 1 << 14
		messageHeader = 4
		clientHello   = 1
	)
	for len(e.data) >= e.nextRecord+recordHeader {
		h := e.data[e.nextRecord:]
		size := int(binary.BigEndian.Uint16(h[3:]))
		if h[0] != recordHandshake || h[1] != 3 || size == 0 || size > maxRecord {
			return e.deny("the TLS handshake is malformed")
		}
		if len(h) < recordHeader+size {
			return protoUndecided
		}
		e.msg = append(e.msg, h[recordHeader:recordHeader+size]...)
		e.nextRecord += recordHeader + size
		if len(e.msg) < messageHeader {
			continue
		}
		if e.msg[0] != clientHello {
			return e.deny("the TLS handshake does not begin with a ClientHello")
		}
		need := messageHeader + int(e.msg[1])<<16 + int(e.msg[2])<<8 + int(e.msg[3])
		switch {
		case need > maxSniff:
			return e.deny("the TLS ClientHello is too large")
		case len(e.msg) > need: // another message before the server's answer, which no client sends
			return e.deny("the TLS ClientHello is followed by something else")
		case len(e.msg) == need:
			name, ok := serverName(e.msg[messageHeader:])
			if !ok {
				return e.deny("the TLS ClientHello is malformed")
			}
			e.name = name
			return protoTLS
		}
	}
	return protoUndecided
}

// A cursor reads length-prefixed fields. After the first failure ok is false and all results are empty.
type cursor struct {
	rest []byte // bytes that are not read yet
	ok   bool   // no read has failed
}

// take reads n bytes.
func (c *cursor) take(n int) []byte {
	if !c.ok || n > len(c.rest) {
		c.ok, c.rest = false, nil
		return nil
	}
	p := c.rest[:n]
	c.rest = c.rest[n:]
	return p
}

// number reads a big-endian number of size bytes.
func (c *cursor) number(size int) (n int) {
	for _, b := range c.take(size) {
		n = n<<8 | int(b)
	}
	return n
}

// vector reads a length of size bytes, and then that many bytes.
func (c *cursor) vector(size int) []byte { return c.take(c.number(size)) }

// serverName returns the host name in a ClientHello, in lower case, "" if there is none. It is not ok if there are two names, or
// if two parsers could read the message differently.
func serverName(hello []byte) (name string, ok bool) {
	c := cursor{hello, true}
	c.take(2 + 32) // version, random
	c.vector(1)    // session id
	c.vector(2)    // cipher suites
	c.vector(1)    // compression methods
	if !c.ok || len(c.rest) == 0 {
		return "", c.ok // no extensions
	}
	extensions := cursor{c.vector(2), c.ok}
	if len(c.rest) != 0 {
		return "", false
	}
	found := false
	for extensions.ok && len(extensions.rest) > 0 {
		kind := extensions.number(2)
		data := extensions.vector(2)
		if kind != 0 || !extensions.ok {
			continue
		}
		list := cursor{data, true}
		names := cursor{list.vector(2), list.ok}
		nameType := names.number(1)
		host := names.vector(2)
		if found || !names.ok || nameType != 0 || len(host) == 0 || len(names.rest) != 0 || len(list.rest) != 0 {
			return "", false
		}
		found, name = true, strings.ToLower(string(host))
	}
	return name, extensions.ok && c.ok
}
