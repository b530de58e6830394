package strictyaml

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

type target struct {
	Name   string            `yaml:"name"`
	Count  int               `yaml:"count"`
	Ratio  float64           `yaml:"ratio"`
	On     bool              `yaml:"on"`
	Size   caisson.Size      `yaml:"size"`
	Wait   caisson.Duration  `yaml:"wait"`
	List   []string          `yaml:"list"`
	Env    map[string]string `yaml:"env"`
	Nested struct {
		Deep int `yaml:"deep"`
	} `yaml:"nested"`
	Steps  []step `yaml:"steps"`
	Hidden string `yaml:"-"`

	MaybeCount  *int64        `yaml:"maybeCount"`
	MaybeSize   *caisson.Size `yaml:"maybeSize"`
	MaybeStep   *step         `yaml:"maybeStep"`
	MaybeAbsent *step         `yaml:"maybeAbsent"`
}

type step struct {
	Run []string `yaml:"run"`
}

func TestDecode(t *testing.T) {
	v := target{Count: 7, Ratio: 0.5}
	err := Decode([]byte(`
# comment
name: 1.10
on: true
size: 512M
wait: 7d
list: [a, 2]
env: {A: b, N: 1}
nested: {deep: 3}
steps:
  - run: [sh, -c, "true"]
maybeCount: 0
maybeSize: 1K
maybeStep: {run: [x]}
maybeAbsent: null
`), &v)
	if err != nil {
		t.Fatal(err)
	}
	if v.Name != "1.10" || v.Count != 7 || v.Ratio != 0.5 || !v.On || v.Size != 512<<20 || v.Wait.String() != "168h0m0s" ||
		v.List[1] != "2" || v.Env["N"] != "1" || v.Nested.Deep != 3 || v.Steps[0].Run[2] != "true" {
		t.Errorf("decoded %+v", v)
	}
	if v.MaybeCount == nil || *v.MaybeCount != 0 || v.MaybeSize == nil || *v.MaybeSize != 1024 || v.MaybeStep == nil || v.MaybeStep.Run[0] != "x" || v.MaybeAbsent != nil {
		t.Errorf("pointers: %+v", v)
	}
	for _, empty := range []string{"", "\n", "# only\n  # comments\n"} {
		if err := Decode([]byte(empty), &v); err != nil {
			t.Errorf("%q: %v", empty, err)
		}
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"unknown", "nmae: x\n", []string{"nmae: unknown key; known are", "(line 1)"}},
		{"unknown by case", "Count: 1\n", []string{"Count: unknown key; did you mean count? Known are", "(line 1)"}},
		{"tab", "nested:\n\tdeep: 1\n", []string{"not valid YAML: line 2", "cannot be indented with tabs"}},
		{"unknown deep", "name: x\nnested:\n  dep: 1\n", []string{"nested.dep: unknown key", "(line 3)"}},
		{"plural", "names: x\n", []string{"names: unknown key; did you mean name? Known are"}},
		{"keys below a text", "env: {A: {b: c}}\n", []string{"env.A: must be a single value, not a mapping; in events, write keys with a dot, as in A.b (line 1)"}},
		{"in list", "steps:\n- run: [a]\n- rum: [b]\n", []string{"steps[1].rum: unknown key", "(line 3)"}},
		{"double", "name: a\nname: b\n", []string{"name: key appears twice (line 2)"}},
		{"double in map", "env: {A: 1, A: 2}\n", []string{"env.A: key appears twice"}},
		{"int", "count: many\n", []string{`count: "many" is not a whole number (line 1)`}},
		{"bool", "on: 3\n", []string{`on: "3" is not true or false`}},
		{"size", "size: big\n", []string{`size: "big" is not a size`}},
		{"duration", "wait: soon\n", []string{`wait: "soon" is not a duration`}},
		{"kinds", "list: x\nname: [y]\nnested: 3\nenv: z\nsize: []\n", []string{
			"list: must be a list", "name: must be a single value", "nested: must be a mapping", "env: must be a mapping", "size: must be a single value",
		}},
		{"all at once", "a: 1\nb: 2\ncount: x\n", []string{"a: unknown", "b: unknown", "count: "}},
		{"alias", "name: &x a\nlist: [*x]\n", []string{"list[0]: aliases are not supported"}},
		{"behind a pointer", "maybeCount: x\nmaybeStep: {rum: 1}\nmaybeSize: big\n", []string{
			`maybeCount: "x" is not a whole number`, "maybeStep.rum: unknown key", "maybeSize: ",
		}},
		{"hidden", "Hidden: x\n", []string{"Hidden: unknown key"}},
		{"syntax", "name: [\n", []string{"not valid YAML"}},
		{"two documents", "name: a\n---\nname: b\n", []string{"more than one YAML document"}},
		{"text after a flow mapping", "{name: a}\n\ncount: 1\n", []string{"not valid YAML: line 2"}},
		{"scalar", "hello", []string{"must be a mapping"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Decode([]byte(c.in), new(target))
			if err == nil {
				t.Fatal("accepted")
			}
			if caisson.KindOf(err) != caisson.Invalid {
				t.Errorf("kind %s", caisson.KindOf(err))
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q lacks %q", err, w)
				}
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("name: x\nsteps: [{run: [a]}]\n")
	f.Add("&a [*a]")
	f.Add("? [a]: b\n")
	f.Add("env: {<<: {a: b}}\n")
	f.Fuzz(func(t *testing.T, s string) {
		err := Decode([]byte(s), new(target))
		if err != nil && caisson.KindOf(err) != caisson.Invalid {
			t.Fatalf("%q: %v", s, err)
		}
	})
}
