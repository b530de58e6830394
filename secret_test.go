package caisson_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/caisson-dev/caisson"
)

const plain = "sk-ant-very-secret-0123456789"

// wrapped contains a secret in every way that types of this project may.
type wrapped struct {
	Public  caisson.Secret
	Pointer *caisson.Secret
	Any     any
	List    []caisson.Secret
	Map     map[string]caisson.Secret
	private caisson.Secret
	hidden  *caisson.Secret
	many    []caisson.Secret
	byName  map[string]caisson.Secret
	any     any
	inner   struct{ deep caisson.Secret }
}

func wrap() wrapped {
	s := caisson.NewSecret(plain)
	w := wrapped{
		Public: s, Pointer: &s, Any: s, List: []caisson.Secret{s}, Map: map[string]caisson.Secret{"k": s},
		private: s, hidden: &s, many: []caisson.Secret{s}, byName: map[string]caisson.Secret{"k": s}, any: s,
	}
	w.inner.deep = s
	return w
}

// TestPromise2SecretNeverPrints passes a secret through every function that converts values into text or bytes.
func TestPromise2SecretNeverPrints(t *testing.T) {
	w, s := wrap(), caisson.NewSecret(plain)
	values := map[string]any{
		"a secret": s, "a pointer": &s, "a struct": w, "a pointer to a struct": &w, "a list": []any{s, w},
		"a map": map[string]any{"k": s, "w": w}, "an error": fmt.Errorf("wrong: %w", secretError{s}), "a function's error": errors.Join(secretError{s}),
	}
	for name, v := range values {
		for _, verb := range "vTtbcdoOqxXUeEfFgGsp!%z" {
			for _, flags := range []string{"", "+", "#", " ", "0", "-", "+#", "10.3", "#10", "[1]"} {
				check(t, name, fmt.Sprintf("%"+flags+string(verb), v))
			}
		}
		check(t, name, fmt.Sprint(v), fmt.Sprintln(v), format("%d %s", v, v), format("none", v), format("%*d", v, 1), format("%[2]*[1]d", 1, v))
		for _, encoded := range encode(v) {
			check(t, name, encoded)
		}
	}
	check(t, "cmp", cmp.Diff(struct{ S caisson.Secret }{s}, struct{ S caisson.Secret }{caisson.NewSecret("x")}))
	check(t, "cmp with private fields", cmp.Diff(w, wrapped{}, cmp.Exporter(func(reflect.Type) bool { return true })))
	check(t, "reflection", walk(reflect.ValueOf(w), 0))
	var b strings.Builder
	if err := template.Must(template.New("").Parse(`{{.}} {{.Public}} {{printf "%d" .Public}} {{.List}}`)).Execute(&b, w); err != nil {
		t.Error(err)
	}
	check(t, "a template", b.String())
	check(t, "a panic", panicText(s), panicText(w), panicText(secretError{s}))
}

// format is [fmt.Sprintf] without the checks of vet: these calls are wrong on purpose.
var format = fmt.Sprintf

// encode returns v in every encoding, and the errors of encoders that do not support it.
func encode(v any) (out []string) {
	add := func(b []byte, err error) { out = append(out, string(b), fmt.Sprint(err)) }
	add(json.Marshal(v))
	add(json.MarshalIndent(v, "", " "))
	add(xml.Marshal(v))
	func() {
		defer func() { out = append(out, fmt.Sprint(recover())) }()
		add(yaml.Marshal(v))
	}()
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	add(b.Bytes(), err)
	for _, h := range []slog.Handler{slog.NewTextHandler(&b, nil), slog.NewJSONHandler(&b, nil)} {
		l := slog.New(h)
		l.Info("m", "v", v, slog.Any("a", v), slog.Group("g", "v", v))
		l.With("v", v).WithGroup("g").ErrorContext(context.Background(), "m", "err", fmt.Errorf("x: %v", v))
	}
	log.New(&b, "", 0).Println(v)
	return append(out, b.String())
}

type secretError struct{ s caisson.Secret }

func (e secretError) Error() string { return fmt.Sprintf("refused %v", e.s) }

func panicText(v any) (s string) {
	defer func() { s = fmt.Sprint(recover()) }()
	panic(v)
}

// walk reads everything that reflection can read, including private fields, as printers in testing libraries do.
func walk(v reflect.Value, depth int) string {
	if depth > 10 {
		return ""
	}
	var b strings.Builder
	switch v.Kind() {
	case reflect.String:
		b.WriteString(v.String())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			b.WriteString(walk(v.Elem(), depth+1))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			b.WriteString(walk(v.Field(i), depth+1))
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			b.WriteString(walk(v.Index(i), depth+1))
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			b.WriteString(walk(it.Key(), depth+1) + walk(it.Value(), depth+1))
		}
	}
	return b.String()
}

// check fails the test if a text contains the secret, or a large part of it, in any form that formatting verbs produce.
func check(t *testing.T, what string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		for _, part := range []string{plain[7:], plain[10:15], fmt.Sprintf("%x", plain[10:15]), fmt.Sprintf("%X", plain[10:15]),
			fmt.Sprintf("% x", plain[10:15]), strings.Trim(fmt.Sprint([]byte(plain[10:15])), "[]")} {
			if strings.Contains(text, part) {
				t.Errorf("%s: %.300q shows %q", what, text, part)
			}
		}
	}
}

func TestSecret(t *testing.T) {
	s := caisson.NewSecret(plain)
	var none, empty caisson.Secret = caisson.Secret{}, caisson.NewSecret("")
	if s.Reveal() != plain || s.IsZero() || !none.IsZero() || !empty.IsZero() || none.Reveal() != "" {
		t.Error("a secret is not what was put into it")
	}
	if !s.Equal(caisson.NewSecret(plain)) || s.Equal(caisson.NewSecret(plain+"x")) || s.Equal(none) || !none.Equal(empty) {
		t.Error("secrets compare wrongly")
	}
	var in struct {
		S caisson.Secret `json:"s" yaml:"s"`
		Z caisson.Secret `json:"z,omitzero" yaml:"z,omitempty"`
	}
	if err := json.Unmarshal([]byte(`{"s":"`+plain+`"}`), &in); err != nil || in.S.Reveal() != plain {
		t.Errorf("from json: %v", err)
	}
	if err := yaml.Unmarshal([]byte(`s: x`), &in); err != nil || in.S.Reveal() != "x" {
		t.Errorf("from yaml: %v", err)
	}
	b, err := json.Marshal(in)
	if err != nil || string(b) != `{"s":"[redacted]"}` {
		t.Errorf("as json: %s, %v", b, err)
	}
	if b, err := yaml.Marshal(in); err != nil || string(b) != "s: '[redacted]'\n" {
		t.Errorf("as yaml: %s, %v", b, err)
	}
}

func TestActorOf(t *testing.T) {
	ctx := t.Context()
	local := caisson.WithCaller(ctx, caisson.Caller{Account: "a", Local: true})
	for want, ctx := range map[string]context.Context{
		"":      ctx,
		"local": local,
		"tk-1":  caisson.WithCaller(ctx, caisson.Caller{Account: "a", Token: "tk-1"}),
		"sb-1":  caisson.WithGuest(local, caisson.Guest{Account: "a", Sandbox: "sb-1"}), // the guest of a wire takes precedence
	} {
		if got := caisson.ActorOf(ctx); got != want {
			t.Errorf("actor %q, want %q", got, want)
		}
	}
}
