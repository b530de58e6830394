package check

// wordFinder finds the words of a list in a text in one pass, ignoring the case of ASCII letters. It is an automaton of Aho and
// Corasick (1975).
type wordFinder struct {
	class [256]uint8 // number of the class of each byte; 0 for bytes that occur in no word
	width int        // number of classes of bytes
	next  []int32    // number of the next state, indexed by state*width+class
	found [][]int    // indexes of the words that end in a state, indexed by the state
}

// newWords returns a wordFinder for the words in list.
func newWords(list []string) *wordFinder {
	w := &wordFinder{width: 1}
	for _, word := range list {
		for i := range len(word) {
			b := lower(word[i])
			if w.class[b] == 0 {
				w.class[b] = uint8(w.width)
				w.width++
			}
		}
	}
	for b := byte('A'); b <= 'Z'; b++ {
		w.class[b] = w.class[lower(b)]
	}
	w.add()
	for i, word := range list {
		at := int32(0)
		for j := range len(word) {
			edge := int(at)*w.width + int(w.class[lower(word[j])])
			if w.next[edge] == 0 {
				w.next[edge] = w.add()
			}
			at = w.next[edge]
		}
		if at != 0 { // an empty word is never found
			w.found[at] = append(w.found[at], i)
		}
	}
	w.link()
	return w
}

// add adds a state without edges and returns its number.
func (w *wordFinder) add() int32 {
	w.next = append(w.next, make([]int32, w.width)...)
	w.found = append(w.found, nil)
	return int32(len(w.found) - 1)
}

// link turns the trie of the words into an automaton: a missing edge of a state is replaced by the edge of the state for its
// longest proper suffix.
func (w *wordFinder) link() {
	suffix := make([]int32, len(w.found))
	var queue []int32
	for c := range w.width {
		if s := w.next[c]; s != 0 {
			queue = append(queue, s)
		}
	}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		w.found[s] = append(w.found[s], w.found[suffix[s]]...)
		for c := range w.width {
			edge := int(s)*w.width + c
			other := w.next[int(suffix[s])*w.width+c]
			if t := w.next[edge]; t != 0 {
				suffix[t] = other
				queue = append(queue, t)
			} else {
				w.next[edge] = other
			}
		}
	}
}

// find calls hit for each occurrence of a word in text, with the index of the word in the list and the offset of its end, until
// hit returns false.
func (w *wordFinder) find(text string, hit func(word, end int) bool) {
	at := int32(0)
	for i := range len(text) {
		at = w.next[int(at)*w.width+int(w.class[text[i]])]
		for _, word := range w.found[at] {
			if !hit(word, i+1) {
				return
			}
		}
	}
}

// foundIn reports whether text contains one of the words of the list.
func (w *wordFinder) foundIn(text string) bool {
	has := false
	w.find(text, func(int, int) bool { has = true; return false })
	return has
}

// lower returns b, or the lower-case letter if b is an ASCII letter in upper case.
func lower(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}
