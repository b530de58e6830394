package strictjson

import "strconv"

// An Object is a JSON object whose top-level members can be replaced. It keeps the order of members.
type Object struct{ members []member }

type member struct {
	name  string
	value Value
}

// Object returns a copy of v's top level; it is empty if v is not an object.
func (v Value) Object() *Object {
	o := &Object{members: make([]member, 0, 16)}
	for name, x := range v.Members() {
		o.members = append(o.members, member{string(name), x})
	}
	return o
}

// Clone returns a copy. The values are shared, because they are immutable.
func (o *Object) Clone() *Object {
	return &Object{members: append(make([]member, 0, len(o.members)+4), o.members...)}
}

// Get returns a member, or nil if there is none.
func (o *Object) Get(name string) Value {
	for _, m := range o.members {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

// Set replaces a member, or adds it at the end. v must be valid JSON.
func (o *Object) Set(name string, v Value) {
	for i := range o.members {
		if o.members[i].name == name {
			o.members[i].value = v
			return
		}
	}
	o.members = append(o.members, member{name, v})
}

// SetText sets a member to a string.
func (o *Object) SetText(name, s string) { o.Set(name, Quote(nil, s)) }

// SetInt sets a member to a number.
func (o *Object) SetInt(name string, n int64) { o.Set(name, strconv.AppendInt(nil, n, 10)) }

// Value returns o as JSON. Names are encoded again, values are copied.
func (o *Object) Value() Value {
	size := 2
	for _, m := range o.members {
		size += len(m.name) + len(m.value) + 4
	}
	b := append(make([]byte, 0, size), '{')
	for i, m := range o.members {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(Quote(b, m.name), ':'), m.value...)
	}
	return append(b, '}')
}
