package strictjson

// A Walker reads a value once, from front to back, at any depth. In contrast, [Value.Members] of a member reads that member
// twice, which is slow for long bodies. A Walker never fails: at invalid text it stops early.
type Walker struct {
	b []byte // the text of the value
	i int    // position in b of the next value to read
}

// Walk returns a Walker at the beginning of v.
func (v Value) Walk() *Walker { return &Walker{b: v} }

// Kind returns the kind of the next value as [Value.Kind] does: '{' for an object, 0 if there is no value, and so on.
func (w *Walker) Kind() byte { return Value(w.b[w.i:]).Kind() }

// Skip moves past the next value and returns it, or nil if there is none.
func (w *Walker) Skip() Value {
	end := valueEnd(w.b, w.i)
	if end < 0 {
		w.i = len(w.b)
		return nil
	}
	v := Value(w.b[w.i:end])
	w.i = end
	return v
}

// Peek returns the value of the member with this name of the next value, or nil if there is none, without moving.
func (w *Walker) Peek(name string) Value { return Value(w.b[w.i:]).Get(name) }

// Array reads the next value, which must be an array, and calls each before every element. Elements that each does not read are
// skipped. If each returns an error, Array returns it, and w must not be used any more.
func (w *Walker) Array(each func(i int) error) error {
	n := -1
	return w.walkMembers(']', func() error {
		n++
		return each(n)
	})
}

// Object reads the next value, which must be an object, and calls each before the value of every member. Values that each does
// not read are skipped. If each returns an error, Object returns it, and w must not be used any more.
func (w *Walker) Object(each func(name []byte) error) error {
	return w.walkMembers('}', func() error {
		end := valueEnd(w.b, w.i)
		if end < 0 || w.b[w.i] != '"' {
			w.i = len(w.b)
			return nil
		}
		name := unquote(w.b[w.i:end])
		if w.i = skipSpace(w.b, end); w.i == len(w.b) || w.b[w.i] != ':' {
			w.i = len(w.b)
			return nil
		}
		w.i = skipSpace(w.b, w.i+1)
		before := w.i
		if err := each(name); err != nil {
			return err
		}
		if w.i == before {
			w.Skip()
		}
		return nil
	})
}

// walkMembers reads the next value, an array or object with this closing bracket, and calls each before every element or member.
func (w *Walker) walkMembers(closing byte, each func() error) error {
	if w.i == len(w.b) || w.b[w.i] != closing-2 { // the code points of the opening and the closing bracket differ by two
		w.Skip()
		return nil
	}
	w.i = skipSpace(w.b, w.i+1)
	for w.i < len(w.b) && w.b[w.i] != closing {
		before := w.i
		if err := each(); err != nil {
			return err
		}
		if w.i == before {
			w.Skip()
		}
		if w.i = skipSpace(w.b, w.i); w.i == len(w.b) || w.b[w.i] != ',' {
			break
		}
		w.i = skipSpace(w.b, w.i+1)
	}
	if w.i == len(w.b) || w.b[w.i] != closing {
		w.i = len(w.b)
		return nil
	}
	w.i++
	return nil
}
