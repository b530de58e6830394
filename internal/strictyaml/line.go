package strictyaml

import (
	"errors"
	"regexp"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
	"go.yaml.in/yaml/v3"
)

// segment matches one key or index of the path of a field, such as setup[0].run.
var segment = regexp.MustCompile(`[^.\[\]]+|\[[0-9]+\]`)

// AddLines adds to each Invalid error in err the line of its field in data, or of the nearest existing ancestor. Errors
// without a field are not changed.
func AddLines(data []byte, err error) error {
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) != nil || len(doc.Content) == 0 {
		return err
	}
	var out []error
	for _, e := range flatten(err) {
		if x, ok := errors.AsType[*caisson.Error](e); ok && x.Kind == caisson.Invalid && x.Field != "" {
			if line := lineOf(doc.Content[0], x.Field); line > 0 {
				c := *x
				c.Msg += " (line " + strconv.Itoa(line) + ")"
				e = &c
			}
		}
		out = append(out, e)
	}
	return errors.Join(out...)
}

// lineOf returns the line, below n, of the last existing key in the path field, such as setup[0].run; 0 if none exists.
func lineOf(n *yaml.Node, field string) int {
	line := 0
	for _, s := range segment.FindAllString(field, -1) {
		index, err := strconv.Atoi(strings.Trim(s, "[]"))
		switch {
		case n.Kind == yaml.SequenceNode && s[0] == '[' && err == nil && index < len(n.Content):
			n = n.Content[index]
			line = n.Line
		case n.Kind == yaml.MappingNode:
			key, value := member(n, s)
			if key == nil {
				return line
			}
			line, n = key.Line, value
		default:
			return line
		}
	}
	return line
}

// member returns a key of a mapping and its value, or nil if the key does not exist.
func member(n *yaml.Node, name string) (key, value *yaml.Node) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i], n.Content[i+1]
		}
	}
	return nil, nil
}

// flatten returns the errors that were joined in err.
func flatten(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var list []error
	for _, e := range joined.Unwrap() {
		list = append(list, flatten(e)...)
	}
	return list
}
