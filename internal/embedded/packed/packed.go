// Package packed defines the form in which a program is embedded in another one: compressed, with the SHA-256 hash of the
// program.
package packed

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"
)

// head is the beginning of a packed program: the header of a zstd frame of 32 bytes that decompressors skip. The frame contains
// the SHA-256 hash of the program.
const head = "\x50\x2a\x4d\x18\x20\x00\x00\x00"

// window is the window size of zstd, which limits the memory for unpacking. A larger window would hardly make programs smaller.
const window = 1 << 18

// Write writes a program in packed form to w. The result depends only on the program.
func Write(w io.Writer, program []byte) error {
	sum := sha256.Sum256(program)
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	defer z.Close()
	_, err = w.Write(z.EncodeAll(program, append([]byte(head), sum[:]...)))
	return err
}

// A Program is an embedded program in its packed form.
type Program struct {
	SHA256 string      // SHA-256 hash of the program, in hexadecimal
	file   io.ReaderAt // the packed program
}

// Open reads the hash of a packed program. It returns an error if file is not a packed program.
func Open(file io.ReaderAt) (Program, error) {
	start := make([]byte, len(head)+sha256.Size)
	n, _ := file.ReadAt(start, 0)
	sum, ok := bytes.CutPrefix(start[:n], []byte(head))
	if !ok || len(sum) < sha256.Size {
		return Program{}, errors.New("the file is no packed program")
	}
	return Program{SHA256: hex.EncodeToString(sum), file: file}, nil
}

// Unpack writes the program to w. It returns an error if the checksum of zstd shows that the packed program is damaged. It does
// not check the SHA-256 hash, which would take a third more time.
func (p Program) Unpack(w io.Writer) error {
	const all = 1 << 62
	z, err := zstd.NewReader(io.NewSectionReader(p.file, 0, all), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window))
	if err != nil {
		return err
	}
	defer z.Close()
	_, err = io.Copy(w, z)
	return err
}
