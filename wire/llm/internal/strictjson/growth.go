package strictjson

// Growth returns an upper bound of the bytes that the text of v grows by if a provider decodes and encodes it for a model: with
// spaces and line breaks at every punctuation mark, and \u0000 escapes for characters that are not ASCII.
func (v Value) Growth() (n int64) {
	for _, b := range v {
		n += int64(growth[b])
	}
	return n
}

// growth contains, for each value of a byte, by how many bytes each such byte can make a text grow that is encoded again.
var growth = func() (g [256]uint8) {
	for b := 0x80; b < 0x100; b++ {
		g[b] = 2 // two bytes of UTF-8 become six, three become six, four become twelve
	}
	for _, b := range []byte(",:{}[]") {
		g[b] = 2
	}
	return g
}()
