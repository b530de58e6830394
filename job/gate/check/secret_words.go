package check

// words finds many words in a text in one pass, ignoring the case of ASCII letters (Aho and Corasick, 1975).
type words struct {
	class [256]uint8 // class of each byte; 0 for bytes that occur in no word
	width int        // number of classes
	next  []int32    // indexed by state*width+class: the next state
	found [][]int    // by state: the indexes of the words that end in it
}

func newWords(list []string) *words {
	w := &words{width: 1}
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
		if at != 0 { // the empty word is never found
			w.found[at] = append(w.found[at], i)
		}
	}
	w.link()
	return w
}

func (w *words) add() int32 {
	w.next = append(w.next, make([]int32, w.width)...)
	w.found = append(w.found, nil)
	return int32(len(w.found) - 1)
}

// link turns the trie into an automaton: a missing edge of a state is replaced by that of its longest proper suffix.
func (w *words) link() {
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

// find calls hit for each word in text, with its index in the list and the offset of its end, until hit returns false.
func (w *words) find(text string, hit func(word, end int) bool) {
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

// any reports whether text contains one of the words.
func (w *words) any(text string) bool {
	has := false
	w.find(text, func(int, int) bool { has = true; return false })
	return has
}

func lower(b byte) byte {
	if 'A' <= b && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}
