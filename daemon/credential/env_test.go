package credential

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-dev/caisson"
)

// shown formats variables for comparison.
func shown(vars []Variable) (out []string) {
	for _, v := range vars {
		s := fmt.Sprintf("%d %s=%s", v.Line, v.Name, v.Value.Reveal())
		if v.PreviousLine > 0 {
			s += fmt.Sprintf(" again (%d)", v.PreviousLine)
		}
		out = append(out, s)
	}
	return out
}

func TestParseEnv(t *testing.T) {
	for in, want := range map[string][]string{
		"":                                   nil,
		"\n\n  \t\n# A=1\n  # B=2":           nil,
		"A=1":                                {"1 A=1"},
		"\uFEFFA=1\r\nB=2\r\n":               {"1 A=1", "2 B=2"},
		"export A=1\n \texport \t_b2=2":      {"1 A=1", "2 _b2=2"},
		"exportA=1":                          {"1 exportA=1"},
		"A=":                                 {"1 A="},
		"A= \t# nothing":                     {"1 A="},
		"A=1 # one\nB=2\t#two":               {"1 A=1", "2 B=2"},
		"A=a=b==":                            {"1 A=a=b=="},
		"A=sk-x_y.z/+:@,;!?&*%^~":            {"1 A=sk-x_y.z/+:@,;!?&*%^~"},
		"A=$\nB=a$1":                         {"1 A=$", "2 B=a$1"},
		"A=' a \"b\" $C \\n # '":             {`1 A= a "b" $C \n # `},
		`A="a b#c 'd' \"e\" \$F \\g"`:        {`1 A=a b#c 'd' "e" $F \g`},
		`A="1\n2\t3\r"`:                      {"1 A=1\n2\t3\r"},
		"A=''\nB=\"\"":                       {"1 A=", "2 B="},
		"A='-----BEGIN\r\nx\r\n' # c\r\nB=2": {"1 A=-----BEGIN\nx\n", "4 B=2"},
		"A=\"1\n2\n\"\n\nB=2":                {"1 A=1\n2\n", "5 B=2"},
		"A=1\nB=2\nA=3\nA=4":                 {"1 A=1", "2 B=2", "3 A=3 again (1)", "4 A=4 again (3)"},
		"NOT_OPENAI_API_KEY=a\nOPENAI_API_KEY_OLD=b\n#OPENAI_API_KEY=c\nOPENAI_API_KEY=d": {"1 NOT_OPENAI_API_KEY=a", "2 OPENAI_API_KEY_OLD=b", "4 OPENAI_API_KEY=d"},
	} {
		got, err := ParseEnv(strings.NewReader(in))
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		if diff := cmp.Diff(want, shown(got)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", in, diff)
		}
	}
}

func TestParseEnvRefuses(t *testing.T) {
	for in, line := range map[string]int{
		"hunter2": 1, "A=1\nhunter2": 2, "hunter2: 1": 1, "A =hunter2": 1, "A= hunter2": 1, "1A=hunter2": 1, "A-B=hunter2": 1, "=hunter2": 1,
		"export": 1, "export A": 1, "Export A=hunter2": 1, "A=hunter2 x": 1, "A='hunter2": 1, "A=1\n\nA=\"hunter2\n\n": 3,
		`A="hunter2\`: 1, `A="hunter2\"`: 1, `A="\hunter2"`: 1, "A='hunter2'x": 1, "A='hunter2'#x": 1, `A="hunter2""x"`: 1, "A=hunter2'x'": 1,
		"A=hunter\\2": 1, "A=hunter2#x": 1, "A=`hunter2`": 1, "A=$hunter2": 1, "A=${hunter2}": 1, "A=$(hunter2)": 1, `A="x$hunter2"`: 1,
		`A="\\$hunter2"`: 1, "A=hunter2\x00": 1, "A=hunter2\x1b[0m": 1, "A='hunter2\x07'": 1, "A=1\nB\u00a0=hunter2": 2, "A=hunter2\rB=1": 1, "A=1\n'\r'hunter2": 2,
	} {
		_, err := ParseEnv(strings.NewReader(in))
		if caisson.KindOf(err) != caisson.Invalid || !strings.Contains(fmt.Sprint(err), fmt.Sprintf("line %d ", line)) {
			t.Errorf("%q: %v", in, err)
		}
		if strings.Contains(fmt.Sprintf("%v %+v", err, err), "hunter") {
			t.Errorf("%q: the error shows the value: %v", in, err)
		}
	}
	for _, in := range []string{"A=\xff", strings.Repeat("A=1\n", maxEnvFile/4+1)} {
		if _, err := ParseEnv(strings.NewReader(in)); caisson.KindOf(err) != caisson.Invalid {
			t.Errorf("%.20q: %v", in, err)
		}
	}
}

// FuzzParseEnv checks that accepted files have valid names and values, in order, and that they parse the same when they are
// written again.
func FuzzParseEnv(f *testing.F) {
	for _, s := range []string{
		"A=1\n", "export A='x\ny' # c\nB=\"\\n\\\"\"", "A=\"\\", "A='", "\r\n\r\nA=\r\n", "\uFEFF", "A=1\nA=2", "A=$B", "# x", "A=\"$\"", "=", "\x00",
		"A=\"\\\\$x\"", "A=\r", "A='\r'",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		vars, err := ParseEnv(strings.NewReader(in))
		if err != nil {
			if caisson.KindOf(err) != caisson.Invalid || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %q", err)
			}
			return
		}
		var again strings.Builder
		line := 0
		for _, v := range vars {
			if v.Line <= line || v.PreviousLine >= v.Line || assignment.FindString(v.Name+"=") != v.Name+"=" && !strings.HasPrefix(v.Name, "export") {
				t.Fatalf("%q: variable %q in line %d after %d", in, v.Name, v.Line, line)
			}
			line = v.Line
			value := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(v.Value.Reveal())
			fmt.Fprintf(&again, "%s=\"%s\"\n", v.Name, value)
		}
		back, err := ParseEnv(strings.NewReader(again.String()))
		if err != nil || len(back) != len(vars) {
			t.Fatalf("%q became %q: %v", in, again.String(), err)
		}
		for i := range vars {
			if back[i].Name != vars[i].Name || !back[i].Value.Equal(vars[i].Value) {
				t.Fatalf("%q became %q", in, again.String())
			}
		}
	})
}
