package strictjson

// Growth bounds by how many bytes the text of v grows if a provider decodes it and writes it again for a model: with spaces
// and line breaks at every punctuation mark, and \u0000 for what is not ASCII.
func (v Value) Growth() (n int64) {
	for _, b := range v {
		n += int64(growth[b])
	}
	return n
}

var growth = func() (g [256]uint8) {
	for b := 0x80; b < 0x100; b++ {
		g[b] = 2 // of two bytes of UTF-8 come six, of three six, of four twelve
	}
	for _, b := range []byte(",:{}[]") {
		g[b] = 2
	}
	return g
}()
