package strictyaml

import (
	"errors"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestAddLines(t *testing.T) {
	data := []byte("name: x\nsetup:\n  - run: [a]\n  - run: [b, c]\n    files:\n      - {path: /x}\nenv:\n  A.B: c\n  setup: d\nname2: setup\n")
	for field, want := range map[string]string{
		"name": "(line 1)", "setup": "(line 2)", "setup[0].run": "(line 3)", "setup[1].run[1]": "(line 4)", "setup[1].files[0].path": "(line 6)",
		"setup[1].files[0].data": "(line 6)", "setup[9].run": "(line 2)", "env.setup": "(line 9)", "env.C": "(line 7)",
		"none": "", "none.of.these": "", "": "", "[0]": "", "..": "", "setup[99999999999999999999]": "(line 2)",
	} {
		err := AddLines(data, errors.Join(caisson.Invalidf(field, "is bad"), caisson.Errorf(caisson.Denied, "other")))
		got := err.Error()
		if want == "" && strings.Contains(got, "line") || !strings.Contains(got, want) || strings.Count(got, "line") > 1 {
			t.Errorf("%s: %q, want %q", field, got, want)
		}
		if e, ok := errors.AsType[*caisson.Error](err); !ok || e.Field != field || !strings.Contains(got, "other") {
			t.Errorf("%s: %+v", field, err)
		}
	}
	fault := errors.New("x")
	for _, data := range []string{"", "\t", "[", "a"} {
		if err := AddLines([]byte(data), fault); err.Error() != "x" {
			t.Errorf("%q: %v", data, err)
		}
	}
}
