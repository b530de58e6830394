package httpapi_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/frozen"
)

// A surface is what [TestSurface] reads of an OpenAPI document.
type surface struct {
	lines   []string
	Servers []struct {
		URL string `json:"url"`
	} `json:"servers"`
	Paths map[string]map[string]struct {
		ID         string `json:"operationId"`
		Parameters []struct {
			Name, In string
			Required bool
			Schema   *schema
		}
		RequestBody *body
		Responses   map[string]body
	} `json:"paths"`
	Components struct {
		Schemas         map[string]*schema
		SecuritySchemes map[string]struct{ Type, Scheme string }
	} `json:"components"`
}

// body is that of a request or response.
type body struct {
	Required bool
	Content  map[string]struct{ Schema *schema }
	Headers  map[string]struct{ Schema *schema }
}

// schema is the type of a value.
type schema struct {
	Ref                     string `json:"$ref"`
	Type                    any    // a name, or several
	Format, ContentEncoding string
	Enum                    []any
	Items                   *schema
	Properties              map[string]*schema
	Required                []string
	AdditionalProperties    json.RawMessage // a schema or false
	AnyOf, OneOf            []*schema
}

// TestSurface fails if something that a client of docs/openapi.json can depend on has vanished since it was frozen in
// testdata/surface.txt, and testdata/renames.txt has no new name for it. [TestDocument] keeps the document current.
func TestSurface(t *testing.T) {
	data, err := os.ReadFile("../docs/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var s surface
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	s.read()
	_, renames := frozen.Read(t, "testdata/renames.txt")
	_, lines := frozen.Read(t, "testdata/surface.txt")
	frozen.Check(t, "testdata/surface.txt", s.lines, renaming(t, renames, lines),
		"if it has another name now, add OLD -> NEW to testdata/renames.txt")
}

// renaming returns a function that replaces the names of a table in a line. Each name must be in one of the lines.
func renaming(t *testing.T, table, lines []string) func(string) string {
	to := map[string]string{}
	for _, row := range table {
		if strings.HasPrefix(row, "#") {
			continue
		}
		before, after, _ := strings.Cut(row, " -> ")
		to[before] = after
		if has := func(line string) bool { return replace(line, to, before) != line }; after == "" || !slices.ContainsFunc(lines, has) {
			t.Errorf("testdata/renames.txt: %q is not OLD -> NEW with a name that is frozen", row)
		}
	}
	// The longest name that fits is the most exact one.
	names := slices.SortedFunc(maps.Keys(to), func(a, b string) int { return len(b) - len(a) })
	return func(line string) string { return replace(line, to, names...) }
}

// replace replaces the first of the names that fits at each place of a line.
func replace(line string, to map[string]string, names ...string) string {
	var b strings.Builder
	for i := 0; i < len(line); i++ {
		j := slices.IndexFunc(names, func(name string) bool {
			rest, ok := strings.CutPrefix(line[i:], name)
			return ok && (i == 0 || line[i-1] == ' ') && (rest == "" || strings.Contains(" :./[{", rest[:1]))
		})
		if j < 0 {
			b.WriteByte(line[i])
			continue
		}
		b.WriteString(to[names[j]])
		i += len(names[j]) - 1
	}
	return b.String()
}

// TestRenaming: names are replaced where they are words.
func TestRenaming(t *testing.T) {
	rename := renaming(t, []string{
		"# a comment", "Run -> Task", "Run.error -> Task.fault", "get-run -> show-task", "/runs -> /tasks", "/runs/{id}/log -> /log",
		`Run.state enum "on" -> Task.state enum "live"`,
	}, []string{"Run.error: Run", `Run.state enum "on"`, "operation get-run: GET /runs/{id}", "GET /runs/{id}/log"})
	for line, want := range map[string]string{
		"Run.error.field: array of Run or RunError optional": "Task.fault.field: array of Task or RunError optional",
		"Runner.Run: SubRun":                      "Runner.Run: SubRun",
		`Run.state enum "on"`:                     `Task.state enum "live"`,
		`Run.state enum "off"`:                    `Task.state enum "off"`,
		"operation get-run: GET /runs/{id}":       "operation show-task: GET /tasks/{id}",
		"operation get-run-x: GET /runs/{id}/log": "operation get-run-x: GET /log",
	} {
		if got := rename(line); got != want {
			t.Errorf("%s became %s, want %s", line, got, want)
		}
	}
}

func (s *surface) add(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// read fills s.lines.
func (s *surface) read() {
	for _, server := range s.Servers {
		s.add("server %s", server.URL)
	}
	for name, scheme := range s.Components.SecuritySchemes {
		s.add("security %s: %s %s", name, scheme.Type, scheme.Scheme)
	}
	for name, of := range s.Components.Schemas {
		s.value(name, of, "")
	}
	for path, methods := range s.Paths {
		for method, op := range methods {
			s.add("operation %s: %s %s", op.ID, strings.ToUpper(method), path)
			for _, p := range op.Parameters {
				s.value(op.ID+" "+p.In+" "+p.Name, p.Schema, need(p.Required))
			}
			if op.RequestBody != nil {
				s.body(op.ID+" request", *op.RequestBody, need(op.RequestBody.Required))
			}
			for status, r := range op.Responses {
				s.add("%s %s", op.ID, status)
				s.body(op.ID+" "+status, r, "")
			}
		}
	}
	slices.Sort(s.lines)
	s.lines = slices.Compact(s.lines)
}

func (s *surface) body(where string, b body, need string) {
	for media, of := range b.Content {
		s.value(where+" "+media, of.Schema, need)
	}
	for name, of := range b.Headers {
		s.value(where+" header "+name, of.Schema, "")
	}
}

// need says whether a value must be there.
func need(required bool) string {
	if required {
		return " required"
	}
	return " optional"
}

// value adds the lines of a value: its type, and what is in it.
func (s *surface) value(where string, of *schema, need string) {
	s.add("%s: %s%s", where, of, need)
	s.within(where, of)
}

// within adds the enumerated values and the properties of a type, unless it stands for a named one.
func (s *surface) within(where string, of *schema) {
	if of == nil {
		return
	}
	for _, v := range of.Enum {
		s.add("%s enum %q", where, v)
	}
	for name, p := range of.Properties {
		s.value(where+"."+name, p, need(slices.Contains(of.Required, name)))
	}
	s.within(where+"[]", of.Items)
	s.within(where+"{}", of.values())
	for _, one := range slices.Concat(of.AnyOf, of.OneOf) {
		s.within(where, one)
	}
}

// values returns the type of the values of a map, nil for another type.
func (of *schema) values() *schema {
	var values schema
	if len(of.AdditionalProperties) == 0 || json.Unmarshal(of.AdditionalProperties, &values) != nil { // it is false
		return nil
	}
	return &values
}

// String returns the type without enumerated values and properties.
func (of *schema) String() string {
	if of == nil {
		return "any"
	}
	var words []string
	for _, one := range slices.Concat(of.AnyOf, of.OneOf) {
		words = append(words, one.String())
	}
	names, several := of.Type.([]any)
	if !several && of.Type != nil {
		names = []any{of.Type}
	}
	for _, name := range names {
		switch values := of.values(); {
		case name == "array":
			words = append(words, "array of "+of.Items.String())
		case name == "object" && values != nil:
			words = append(words, "map of "+values.String())
		default:
			words = append(words, fmt.Sprint(name))
		}
	}
	if of.Ref != "" {
		words = append(words, of.Ref[strings.LastIndex(of.Ref, "/")+1:])
	}
	if len(words) == 0 {
		words = []string{"any"}
	}
	text := strings.Join(words, " or ")
	if format := of.Format + of.ContentEncoding; format != "" {
		text += " as " + format
	}
	return text
}
