package packed

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"testing"
)

func TestPacked(t *testing.T) {
	t.Parallel()
	program := make([]byte, 2*window+1)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range program {
		program[i] = byte(r.IntN(4))
	}
	var one, two bytes.Buffer
	for _, b := range []*bytes.Buffer{&one, &two} {
		if err := Write(b, program); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) || one.Len() > len(program)/2 {
		t.Errorf("packed it has %d and %d bytes", one.Len(), two.Len())
	}
	p, err := Open(bytes.NewReader(one.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%x", sha256.Sum256(program)); p.SHA256 != want {
		t.Errorf("the hash is %s, not %s", p.SHA256, want)
	}
	for range 2 { // A program can be unpacked repeatedly.
		var got bytes.Buffer
		if err := p.Unpack(&got); err != nil || !bytes.Equal(got.Bytes(), program) {
			t.Errorf("%d bytes were unpacked, not %d: %v", got.Len(), len(program), err)
		}
	}
	for _, at := range []int{len(head) + sha256.Size, one.Len() / 2, one.Len() - 1} {
		changed := bytes.Clone(one.Bytes())
		changed[at] ^= 1
		p, err := Open(bytes.NewReader(changed))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Unpack(new(bytes.Buffer)); err == nil {
			t.Errorf("a program whose byte %d has changed was unpacked", at)
		}
	}
	p, err = Open(bytes.NewReader(one.Bytes()[:one.Len()/2]))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Unpack(new(bytes.Buffer)); err == nil {
		t.Error("half of a program was unpacked")
	}
	for _, file := range []string{"", "\x7fELF", head, "\x7fELF is not how a packed program begins, however long it is"} {
		if _, err := Open(bytes.NewReader([]byte(file))); err == nil {
			t.Errorf("%q is a packed program", file)
		}
	}
}
