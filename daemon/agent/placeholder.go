package agent

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// promptPlaceholder is the placeholder that [Fill] leaves in a command. The driver replaces it by the prompt, or by the path of
// the prompt's file, when it starts the program.
const promptPlaceholder = "{prompt}"

// placeholderNames are the names of the valid placeholders: NAME in braces stands for a value in a command.
var placeholderNames = []string{"model", "persona", "prompt", "session", "workspace"}

// Fill replaces the placeholders in a command, each argument separately, so that no value becomes two arguments or part of
// another argument. {prompt} is kept for the driver, and doubled braces become single ones. A value must not contain braces,
// because it could contain {prompt}. Returns an Invalid error for such values and for unknown placeholders.
func Fill(command []string, values map[string]string) ([]string, error) {
	if len(command) == 0 {
		return nil, nil
	}
	for name, v := range sorted(values) {
		if strings.ContainsAny(v, "{}\x00") {
			return nil, caisson.Invalidf(name, "%.80q contains a brace and cannot be part of a command; choose another name", v)
		}
	}
	out := make([]string, len(command))
	for i, arg := range command {
		err := scanPlaceholders(arg, func(text, name string) error {
			switch v, ok := values[name]; {
			case name == "":
				out[i] += text
			case name == "prompt":
				out[i] += promptPlaceholder
			case ok:
				out[i] += v
			default:
				return fmt.Errorf("there is no value for {%s}", name)
			}
			return nil
		})
		if err != nil {
			return nil, caisson.Invalidf(fmt.Sprintf("command[%d]", i), "%s", err)
		}
	}
	return out, nil
}

// placeholders returns the names of the placeholders that a command uses, and an error if one is not in placeholderNames.
func placeholders(field string, command []string) (used []string, err error) {
	for i, arg := range command {
		var plain strings.Builder
		err := scanPlaceholders(arg, func(text, name string) error {
			switch {
			case name == "":
				plain.WriteString(text)
			case !slices.Contains(placeholderNames, name):
				return fmt.Errorf("{%.40s} is not known; known are {%s}; write literal braces twice", name, strings.Join(placeholderNames, "}, {"))
			default:
				plain.WriteByte(0) // separates the texts before and after a placeholder
				used = append(used, name)
			}
			return nil
		})
		if err == nil && strings.Contains(plain.String(), promptPlaceholder) {
			err = fmt.Errorf("a command cannot contain the literal text %s, even with doubled braces, because the prompt replaces it", promptPlaceholder)
		}
		if err != nil {
			return nil, caisson.Invalidf(fmt.Sprintf("%s[%d]", field, i), "%s", err)
		}
	}
	return used, nil
}

// scanPlaceholders calls each for the parts of an argument, in their order: with the text of the part, or with the name of a
// placeholder.
func scanPlaceholders(arg string, each func(text, name string) error) error {
	for arg != "" {
		i := strings.IndexAny(arg, "{}")
		switch {
		case i < 0:
			return each(arg, "")
		case i > 0:
			if err := each(arg[:i], ""); err != nil {
				return err
			}
			arg = arg[i:]
		case strings.HasPrefix(arg, "{{") || strings.HasPrefix(arg, "}}"):
			if err := each(arg[:1], ""); err != nil {
				return err
			}
			arg = arg[2:]
		default:
			end := strings.IndexByte(arg, '}')
			if arg[0] == '}' || end < 2 || strings.Contains(arg[1:end], "{") {
				return fmt.Errorf("a brace in %#.40q belongs to no placeholder; write literal braces twice, or put a script into files of a step of setup", arg)
			}
			if err := each("", arg[1:end]); err != nil {
				return err
			}
			arg = arg[end+1:]
		}
	}
	return nil
}

// sorted iterates over m in the order of its keys, so that the order of errors is stable.
func sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}
