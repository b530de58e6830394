package strictjson

// A Walker goes through a value once, from front to back, however deep it looks: [Value.Members] of a member reads that
// member twice, which for long bodies is what takes the time. It never fails: where the text is not valid it stops early.
type Walker struct {
	b []byte
	i int // where the next value begins
}

// Walk returns a Walker before v.
func (v Value) Walk() *Walker { return &Walker{b: v} }

// Kind is the kind of the next value, as [Value.Kind]'s.
func (w *Walker) Kind() byte { return Value(w.b[w.i:]).Kind() }

// Skip goes behind the next value and returns it, nil if there is none.
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

// Peek returns a member of the next value, nil if there is none, and stays before that value.
func (w *Walker) Peek(name string) Value { return Value(w.b[w.i:]).Get(name) }

// Array goes through the next value, which has to be an array, and calls each before every element. What each does not go
// through is skipped. If it returns an error, Array does, and w is of no more use.
func (w *Walker) Array(each func(i int) error) error {
	n := -1
	return w.all(']', func() error {
		n++
		return each(n)
	})
}

// Object goes through the next value, which has to be an object, and calls each before the value of every member. What each
// does not go through is skipped. If it returns an error, Object does, and w is of no more use.
func (w *Walker) Object(each func(name []byte) error) error {
	return w.all('}', func() error {
		end := valueEnd(w.b, w.i)
		if end < 0 || w.b[w.i] != '"' {
			w.i = len(w.b)
			return nil
		}
		name := unquote(w.b[w.i:end])
		if w.i = space(w.b, end); w.i == len(w.b) || w.b[w.i] != ':' {
			w.i = len(w.b)
			return nil
		}
		w.i = space(w.b, w.i+1)
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

// all calls each before every element or member of the array or object that closing ends.
func (w *Walker) all(closing byte, each func() error) error {
	if w.i == len(w.b) || w.b[w.i] != closing-2 { // '[' and ']', '{' and '}' are two apart
		w.Skip()
		return nil
	}
	w.i = space(w.b, w.i+1)
	for w.i < len(w.b) && w.b[w.i] != closing {
		before := w.i
		if err := each(); err != nil {
			return err
		}
		if w.i == before {
			w.Skip()
		}
		if w.i = space(w.b, w.i); w.i == len(w.b) || w.b[w.i] != ',' {
			break
		}
		w.i = space(w.b, w.i+1)
	}
	if w.i == len(w.b) || w.b[w.i] != closing {
		w.i = len(w.b)
		return nil
	}
	w.i++
	return nil
}
