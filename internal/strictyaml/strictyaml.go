// Package strictyaml decodes hand-written YAML into structs and reports all errors at once: unknown and duplicate keys,
// and invalid values, each with its field and line.
package strictyaml

import (
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"go.yaml.in/yaml/v3"
)

// Decode decodes exactly one YAML document into the struct that into points to; fields that data does not contain are
// left unchanged. Every error is an Invalid error whose field is the path of the key; all errors are joined. Aliases
// are rejected, because they make small files expand to large ones.
func Decode(data []byte, into any) error {
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if strings.TrimSpace(stripComments(data)) == "" {
			return nil // The document contains only comments, so all fields keep their defaults.
		}
		return syntaxError(err)
	}
	switch err := dec.Decode(new(yaml.Node)); {
	case err == nil:
		return caisson.Errorf(caisson.Invalid, "more than one YAML document; keep the first")
	case !errors.Is(err, io.EOF): // The document is followed by other text, such as text after a mapping in flow style.
		return syntaxError(err)
	}
	d := decoder{}
	if len(doc.Content) == 1 {
		d.value("", doc.Content[0], reflect.ValueOf(into).Elem())
	}
	return errors.Join(d.faults...)
}

// syntaxError returns the error for text that is not YAML.
func syntaxError(err error) error {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	// The parser does not report which character it is. The message lists the characters that nearly always cause the error.
	if strings.HasSuffix(msg, "found character that cannot start any token") {
		msg += "; YAML cannot be indented with tabs, and values that begin with @, `, %, or a tab need quotation marks"
	}
	return caisson.Errorf(caisson.Invalid, "not valid YAML: %s", msg)
}

// stripComments returns data without the lines that are comments.
func stripComments(data []byte) string {
	var b strings.Builder
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// decoder collects the errors of one Decode.
type decoder struct{ faults []error }

// fault records an error about the field at path, with the line of n.
func (d *decoder) fault(path string, n *yaml.Node, format string, args ...any) {
	d.faults = append(d.faults, caisson.Invalidf(path, "%s (line %d)", fmt.Sprintf(format, args...), n.Line))
}

// value decodes the node n into v. path is the path of n, for errors. Null leaves v unchanged.
func (d *decoder) value(path string, n *yaml.Node, v reflect.Value) {
	if n.Kind == yaml.AliasNode {
		d.fault(path, n, "aliases are not supported; write the value out")
		return
	}
	if n.Tag == "!!null" {
		return
	}
	if _, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.text(path, n, v)
		return
	}
	switch v.Kind() {
	case reflect.Pointer: // A nil pointer means that the key is absent.
		v.Set(reflect.New(v.Type().Elem()))
		d.value(path, n, v.Elem())
	case reflect.Struct:
		d.structure(path, n, v)
	case reflect.Slice:
		d.slice(path, n, v)
	case reflect.Map:
		d.mapping(path, n, v)
	default:
		d.scalar(path, n, v)
	}
}

// text decodes n into v by the UnmarshalText method of v.
func (d *decoder) text(path string, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.ScalarNode {
		d.fault(path, n, "must be a single value")
		return
	}
	if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(n.Value)); err != nil {
		d.fault(path, n, "%s", message(err))
	}
}

// structure decodes the mapping n into the struct v, whose yaml tags are the known keys.
func (d *decoder) structure(path string, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.fault(path, n, "must be a mapping of keys to values")
		return
	}
	fields, known := map[string]int{}, []string{}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		if name != "" && name != "-" {
			fields[name], known = i, append(known, name)
		}
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		at := join(path, key.Value)
		index, ok := fields[key.Value]
		switch {
		case !ok:
			slices.Sort(known)
			text := "unknown key; known are %s"
			if i := slices.IndexFunc(known, func(k string) bool {
				return k+"s" == key.Value || k == key.Value+"s" || strings.EqualFold(k, key.Value)
			}); i >= 0 {
				text = "unknown key; did you mean " + known[i] + "? Known are %s"
			}
			d.fault(at, key, text, strings.Join(known, ", "))
		case seen[key.Value]:
			d.fault(at, key, "key appears twice")
		default:
			seen[key.Value] = true
			d.value(at, val, v.Field(index))
		}
	}
}

// slice decodes the sequence n into the slice v.
func (d *decoder) slice(path string, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.fault(path, n, "must be a list")
		return
	}
	out := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		d.value(fmt.Sprintf("%s[%d]", path, i), item, out.Index(i))
	}
	v.Set(out)
}

// mapping decodes the mapping n into the map v.
func (d *decoder) mapping(path string, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.fault(path, n, "must be a mapping of keys to values")
		return
	}
	out := reflect.MakeMap(v.Type())
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		k := reflect.ValueOf(key.Value).Convert(v.Type().Key())
		if out.MapIndex(k).IsValid() {
			d.fault(join(path, key.Value), key, "key appears twice")
			continue
		}
		e := reflect.New(v.Type().Elem()).Elem()
		if e.Kind() == reflect.String && val.Kind == yaml.MappingNode && len(val.Content) > 0 {
			d.fault(join(path, key.Value), val, "must be a single value, not a mapping; in events, write keys with a dot, as in %.40s.%.40s", key.Value, val.Content[0].Value)
			continue
		}
		d.value(join(path, key.Value), val, e)
		out.SetMapIndex(k, e)
	}
	v.Set(out)
}

// scalar decodes the scalar n into v, a string, a bool or a number.
func (d *decoder) scalar(path string, n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.ScalarNode {
		d.fault(path, n, "must be a single value")
		return
	}
	if v.Kind() == reflect.String { // Values such as 8080, true and 1.10 are accepted as text for a string.
		v.SetString(n.Value)
		return
	}
	if err := n.Decode(v.Addr().Interface()); err != nil {
		d.fault(path, n, "%.40q is not %s", n.Value, kindName(v.Kind()))
	}
}

// kindName returns the description of a kind of values in errors.
func kindName(k reflect.Kind) string {
	switch k {
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	default:
		return "a whole number"
	}
}

// join returns the path of the field key of the field at path.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// message returns the text of err for a user.
func message(err error) string {
	if caisson.KindOf(err) == caisson.Internal {
		return err.Error()
	}
	return caisson.MessageOf(err)
}
