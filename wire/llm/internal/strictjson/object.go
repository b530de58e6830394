package strictjson

import "strconv"

// An Object is a JSON object whose top-level members can be replaced. It keeps the order of members.
type Object struct{ members []member }

// A member is a member of a JSON object.
type member struct {
	name  string // without quotes and escapes
	value Value
}

// Object returns v as an Object whose members can be replaced without changing v; it is empty if v is not an object.
func (v Value) Object() *Object {
	o := &Object{members: make([]member, 0, 16)}
	for name, x := range v.Members() {
		o.members = append(o.members, member{string(name), x})
	}
	return o
}

// Clone returns a copy of o. The values are shared, because they are immutable.
func (o *Object) Clone() *Object {
	return &Object{members: append(make([]member, 0, len(o.members)+4), o.members...)}
}

// Get returns the value of the member with this name, or nil if there is none.
func (o *Object) Get(name string) Value {
	for _, m := range o.members {
		if m.name == name {
			return m.value
		}
	}
	return nil
}

// Set sets the value of the member with this name to v, which must be valid JSON. A new member is added at the end.
func (o *Object) Set(name string, v Value) {
	for i := range o.members {
		if o.members[i].name == name {
			o.members[i].value = v
			return
		}
	}
	o.members = append(o.members, member{name, v})
}

// SetText sets the value of the member with this name to the string s.
func (o *Object) SetText(name, s string) { o.Set(name, Quote(nil, s)) }

// SetInt sets the value of the member with this name to the number n.
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
