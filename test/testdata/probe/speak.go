package main

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// trusting believes every certificate: what the wire lets through is the question, not who is there.
func trusting() *http.Transport {
	return &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
}

// say connects, writes Data, and reads until the end. An answer is only one if Name is in it.
func say(a attempt) (bool, string) {
	c, err := net.DialTimeout("tcp", a.To, patience)
	if err != nil {
		return false, short(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience / 3))
	pieces := [][]byte{[]byte(a.Data)}
	if a.Split {
		pieces = bytes.SplitAfter(pieces[0], []byte("|"))
	}
	for _, p := range pieces {
		if _, err := c.Write(bytes.TrimSuffix(p, []byte("|"))); err != nil {
			return false, short(err)
		}
		if a.Split {
			time.Sleep(20 * time.Millisecond) // so that they are pieces on the wire, too
		}
	}
	b, err := io.ReadAll(io.LimitReader(c, 64<<10))
	open := strings.Contains(string(b), a.Name)
	if errors.Is(err, os.ErrDeadlineExceeded) && len(b) == 0 {
		return open, "no answer"
	}
	return open, fmt.Sprintf("%.300q %v", b, err)
}

// handshake speaks TLS with the server name in Name, "" for none, and asks for a page.
func handshake(a attempt) (bool, string) {
	raw, err := net.DialTimeout("tcp", a.To, patience)
	if err != nil {
		return false, short(err)
	}
	defer raw.Close()
	raw.SetDeadline(time.Now().Add(patience))
	under := net.Conn(raw)
	if a.Split {
		under = crumbs{raw}
	}
	c := tls.Client(under, &tls.Config{ServerName: a.Name, InsecureSkipVerify: true})
	if err := c.Handshake(); err != nil {
		return false, short(err)
	}
	return true, "TLS is established"
}

// crumbs writes the TLS handshake in records of one byte each.
type crumbs struct{ net.Conn }

func (c crumbs) Write(b []byte) (int, error) {
	const header, handshake = 5, 0x16
	if len(b) < header || b[0] != handshake {
		return c.Conn.Write(b)
	}
	var out []byte
	for _, x := range b[header:] {
		out = append(out, handshake, 3, 1, 0, 1, x)
	}
	_, err := c.Conn.Write(out)
	return len(b), err
}

// ask sends Count queries, for Name with a number before it if there is more than one. Any record in an answer is too much.
func ask(a attempt) (bool, string) {
	network, to := "udp", a.To
	if a.TCP {
		network = "tcp"
	}
	if to == "" {
		to = "10.87.0.1:53"
	}
	c, err := net.DialTimeout(network, to, patience)
	if err != nil {
		return false, short(err)
	}
	defer c.Close()
	codes := map[string]int{}
	for i := range max(a.Count, 1) {
		name := a.Name
		if a.Count > 1 {
			name = fmt.Sprintf("%d-%x.%s", i, i*2654435761, a.Name)
		}
		n, code, err := exchange(c, a, name)
		if n > 0 {
			return true, fmt.Sprintf("%d records for %s", n, name)
		}
		if err != nil {
			code = short(err)
		}
		codes[code]++
	}
	return false, fmt.Sprint(codes)
}

func exchange(c net.Conn, a attempt, name string) (records int, code string, err error) {
	q := query(a, name)
	wait := patience
	if a.TCP {
		q = append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)
	} else if a.To != "" || a.Count > 1 {
		wait = quiet
	}
	c.SetDeadline(time.Now().Add(wait))
	if _, err := c.Write(q); err != nil {
		return 0, "", err
	}
	b := make([]byte, 64<<10)
	n, err := c.Read(b)
	if a.TCP && err == nil && n >= 2 {
		size := int(binary.BigEndian.Uint16(b))
		for n < size+2 && err == nil {
			var m int
			m, err = c.Read(b[n:])
			n += m
		}
		b, n = b[2:], n-2
	}
	if err != nil {
		return 0, "", err
	}
	if n < 12 {
		return 0, "", fmt.Errorf("%d bytes", n)
	}
	return int(binary.BigEndian.Uint16(b[6:])) + int(binary.BigEndian.Uint16(b[8:])), fmt.Sprintf("rcode %d", b[3]&15), nil
}

// query returns a query as somebody writes it who does not care for what a name may be: a label may hold any bytes, and
// "\." is a dot within one.
func query(a attempt, name string) []byte {
	class := a.Class
	if class == 0 {
		class = 1
	}
	kind := a.Type
	if kind == 0 {
		kind = 1
	}
	q := []byte{0x12, 0x34, byte(a.Opcode<<3) | 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	name = strings.ReplaceAll(strings.TrimSuffix(name, "."), `\.`, "\xff")
	for label := range strings.SplitSeq(name, ".") {
		if label != "" {
			q = append(q, byte(len(label)))
			q = append(q, strings.ReplaceAll(label, "\xff", ".")...)
		}
	}
	q = append(q, 0)
	q = binary.BigEndian.AppendUint16(q, kind)
	return binary.BigEndian.AppendUint16(q, class)
}
