package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/workspaces"
	"github.com/caisson-dev/caisson/internal/strictyaml"
)

func TestParseMount(t *testing.T) {
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		in   string
		want caisson.Mount
		bad  bool
	}{
		{in: "/src:/dst", want: caisson.Mount{Source: "/src", Target: "/dst"}},
		{in: "/src:/dst:ro", want: caisson.Mount{Source: "/src", Target: "/dst"}},
		{in: "/src:/dst:rw", want: caisson.Mount{Source: "/src", Target: "/dst", Writable: true}},
		{in: ".:/work", want: caisson.Mount{Source: wd, Target: "/work"}},
		{in: "a/../b:/work/./x/", want: caisson.Mount{Source: filepath.Join(wd, "b"), Target: "/work/x"}},
		{in: "/with:colon:/dst", want: caisson.Mount{Source: "/with:colon", Target: "/dst"}},
		{in: "/a:/rw", want: caisson.Mount{Source: "/a", Target: "/rw"}},
		{in: "", bad: true},
		{in: "/src", bad: true},
		{in: ":/dst", bad: true},
		{in: "/src:", bad: true},
		{in: "/src:rw", bad: true},
		{in: "/src:dst", bad: true},
		{in: "/src:/", bad: true},
		{in: "/src:/..", bad: true},
		{in: "/src:/dst:rx", bad: true},
		{in: "/s\x00c:/dst", bad: true},
	} {
		got, err := parseMount(c.in)
		if (err != nil) != c.bad || (!c.bad && got != c.want) {
			t.Errorf("%q: %+v, %v", c.in, got, err)
		}
		if err != nil && (caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != "mount") {
			t.Errorf("%q: %v has kind %s and field %q", c.in, err, caisson.KindOf(err), caisson.FieldOf(err))
		}
	}
}

func FuzzParseMount(f *testing.F) {
	for _, s := range []string{"/a:/b", "a:/b:rw", ":::", "/a:/../..:ro", "x:/", "\x00:/b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		m, err := parseMount(s)
		if err != nil {
			return
		}
		if !filepath.IsAbs(m.Source) || !filepath.IsAbs(m.Target) || m.Target == "/" || filepath.Clean(m.Target) != m.Target ||
			strings.Contains(m.Target, "/../") || strings.ContainsRune(m.Source+m.Target, 0) {
			t.Fatalf("%q became %+v", s, m)
		}
	})
}

func TestParsePlace(t *testing.T) {
	for _, c := range []struct {
		in   string
		want sandboxPath
		ok   bool
		bad  bool
	}{
		{in: "web:/etc", want: sandboxPath{"web", "/etc"}, ok: true},
		{in: "web:/", want: sandboxPath{"web", "/"}, ok: true},
		{in: "web:/a/../b/", want: sandboxPath{"web", "/b"}, ok: true},
		{in: "web:/a:b", want: sandboxPath{"web", "/a:b"}, ok: true},
		{in: "file"},
		{in: "./web:/x"},
		{in: "/web:/x"},
		{in: "../a:b"},
		{in: "dir/a:b"},
		{in: "-"},
		{in: "web:etc", bad: true},
		{in: "web:", bad: true},
		{in: ":/x", bad: true},
		{in: "web:/\x00", bad: true},
	} {
		got, ok, err := parseSandboxPath(c.in)
		if got != c.want || ok != c.ok || (err != nil) != c.bad {
			t.Errorf("%q: %+v, %t, %v", c.in, got, ok, err)
		}
	}
}

func FuzzParsePlace(f *testing.F) {
	for _, s := range []string{"a:/b", "", ":", "./a:/b", "a:/../..", "a:/b:/c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, ok, err := parseSandboxPath(s)
		if err != nil || !ok {
			return
		}
		if p.sandbox == "" || strings.ContainsAny(p.sandbox, "/:") || !filepath.IsAbs(p.path) || filepath.Clean(p.path) != p.path {
			t.Fatalf("%q became %+v", s, p)
		}
	})
}

func TestSmallParsers(t *testing.T) {
	for s, want := range map[string]int{"TERM": 15, "sigkill": 9, "9": 9, "INT": 2, "64": 64} {
		if n, err := parseSignal(s); err != nil || n != want {
			t.Errorf("signal %s: %d, %v", s, n, err)
		}
	}
	for _, s := range []string{"", "0", "65", "-1", "NOPE"} {
		if n, err := parseSignal(s); err == nil {
			t.Errorf("signal %q is %d", s, n)
		}
	}
	a := &app{stdio: stdio{getenv: func(k string) string { return map[string]string{"HOME": "/root"}[k] }}}
	env, err := a.parseEnv([]string{"A=b=c", "HOME", "EMPTY="})
	if err != nil || !reflect.DeepEqual(env, map[string]string{"A": "b=c", "HOME": "/root", "EMPTY": ""}) {
		t.Errorf("env %v, %v", env, err)
	}
	for image, want := range map[string]bool{"host": false, "debian": false, "debian:12": true, "a/b": true, "dir:x": true, "x@sha256:1": true} {
		if isImage(image) != want {
			t.Errorf("isImage(%q) = %t", image, !want)
		}
	}
	if got, want := quoteCommand([]string{"sh", "-c", "it's $x", ""}), `sh -c 'it'\''s $x' ''`; got != want {
		t.Errorf("quoted %s, want %s", got, want)
	}
	for _, c := range []struct {
		args     []string
		template string
		command  []string
		wantT    string
		wantC    []string
	}{
		{[]string{"sandbox", "create"}, "", nil, "", nil},
		{[]string{"sandbox", "create", "host", "--", "sleep", "9"}, "host", []string{"sleep", "9"}, "host", []string{"sleep", "9"}},
		{[]string{"sandbox", "create", "--", "sleep", "9"}, "sleep", []string{"9"}, "", []string{"sleep", "9"}},
		{[]string{"sandbox", "create", "--", "true"}, "true", nil, "", []string{"true"}},
	} {
		tpl, cmd := splitCommand(c.args, c.template, c.command)
		if tpl != c.wantT || strings.Join(cmd, " ") != strings.Join(c.wantC, " ") {
			t.Errorf("%v: %q %v", c.args, tpl, cmd)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	for _, c := range []struct {
		name, yaml string
		fields     []string // at fault, in order
	}{
		{"defaults", "", nil},
		{"loopback", "listen: 127.0.0.1:7070", nil},
		{"loopback 6", "listen: '[::1]:7070'", nil},
		{"everywhere", "listen: :7070", []string{"listen"}},
		{"name", "listen: myhost:7070", []string{"listen"}},
		{"TLS", "listen: 0.0.0.0:7443\ntlsCert: /c\ntlsKey: /k", nil},
		{"half of TLS", "tlsCert: /c", []string{"tlsCert"}},
		{"relative", "tlsCert: c\ntlsKey: k", []string{"tlsCert", "tlsKey"}},
		{"no port", "listen: localhost", []string{"listen"}},
		{"bad port", "listen: localhost:99999", []string{"listen"}},
		{"relative authorities", "registryCA: ca.pem", []string{"registryCA"}},
		{"data", "dataDir: ''", []string{"dataDir"}},
		{"long data", "dataDir: /" + strings.Repeat("x", 100), []string{"dataDir"}},
		{"host", "host: example.com", []string{"host"}},
		{"host with path", "host: https://example.com/x", []string{"host"}},
		{"host socket", "host: unix:///run/caisson.sock", nil},
		{"registries", "insecureRegistries: [ok:5000, 'http://no', '']", []string{"insecureRegistries[1]", "insecureRegistries[2]"}},
		{"public addresses", "publicAddresses: [203.0.113.9, '2001:db8::/64', '::ffff:203.0.113.9', host, 203.0.113.0/33, 'fe80::1%eth0', '::ffff:203.0.113.0/120']",
			[]string{"publicAddresses[3]", "publicAddresses[4]", "publicAddresses[5]", "publicAddresses[6]"}},
		{"all", "platform: kvm\nlogLevel: loud\nlimits: {maxSandboxes: -1, pidsReserve: -1}",
			[]string{"platform", "logLevel", "limits.maxSandboxes", "limits.pidsReserve"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := defaultConfig()
			if err := strictyaml.Decode([]byte(c.yaml), cfg); err != nil {
				t.Fatal(err)
			}
			var got []string
			if err := cfg.validate(); err != nil {
				for _, e := range splitErrors(err) {
					got = append(got, caisson.FieldOf(e))
				}
			}
			if !reflect.DeepEqual(got, c.fields) {
				t.Errorf("faults in %q, want %q", got, c.fields)
			}
		})
	}
}

func TestCheckHost(t *testing.T) {
	for host, want := range map[string]bool{
		"https://h:1": true, "http://127.0.0.1:1": true, "http://localhost": true, "http://[::1]:1": true,
		"http://h:1": false, "ftp://h": false, "https://": false, "https://u:p@h": false, "https://h?x": false, "unix://rel": false,
	} {
		if err := checkHost(host, true); (err == nil) != want {
			t.Errorf("%s: %v", host, err)
		}
	}
	if err := checkHost("http://h:1", false); err != nil {
		t.Errorf("without a token: %v", err)
	}
}

// TestConfigTemplate checks that what init writes is complete and says the truth about defaults.
func TestConfigTemplate(t *testing.T) {
	var all strings.Builder
	for line := range strings.Lines(configTemplate) {
		if rest, ok := strings.CutPrefix(line, "#"); ok && !strings.HasPrefix(rest, " ") || strings.HasPrefix(line, "#  ") {
			all.WriteString(strings.TrimPrefix(line, "#"))
		}
	}
	got := defaultConfig()
	*got = config{}
	if err := strictyaml.Decode([]byte(all.String()), got); err != nil {
		t.Fatalf("%v in:\n%s", err, all.String())
	}
	want := defaultConfig()
	want.PublicAddresses, want.InsecureRegistries, want.CredentialKeyCommand = []string{}, []string{}, []string{}
	want.Workspaces.Hide, want.Workspaces.Rules.Only, want.Workspaces.Rules.Deny, want.Workspaces.Rules.Allow = []string{}, []string{}, []string{}, []string{}
	want.Workspaces.Commands = []workspaces.Command{}
	want.Runs.Grace, want.Runs.Settle = 0, 0 // not configurable
	want.Providers, want.Models, want.Gateway.RunTokenKeys = []caisson.Provider{}, []caisson.Model{}, []string{}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the template says %+v, the defaults are %+v", got, want)
	}
	for i := range reflect.TypeFor[config]().NumField() {
		if key := reflect.TypeFor[config]().Field(i).Tag.Get("yaml"); key != "-" && !strings.Contains(configTemplate, "#"+key+":") {
			t.Errorf("init does not write %s", key)
		}
	}
	if err := strictyaml.Decode([]byte(configTemplate), defaultConfig()); err != nil {
		t.Errorf("the template as it is: %v", err)
	}
}

// TestExitCodes checks that every kind has a code and that the codes are the documented ones.
func TestExitCodes(t *testing.T) {
	a := &app{stdio: stdio{err: new(strings.Builder)}, interrupts: newInterrupts(func() {})}
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{fs.ErrNotExist, 1},
		{caisson.Errorf(caisson.Internal, "x"), 1},
		{caisson.Invalidf("f", "x"), 2},
		{usagef("x", "y"), 2},
		{caisson.Errorf(caisson.NotFound, "x"), 3},
		{caisson.Errorf(caisson.Conflict, "x"), 4},
		{caisson.Errorf(caisson.Denied, "x"), 5},
		{caisson.Errorf(caisson.Unauthed, "x"), 5},
		{caisson.Errorf(caisson.Exhausted, "x"), 6},
		{caisson.Errorf(caisson.Unavailable, "x"), 7},
		{caisson.Errorf("from the future", "x"), 1},
		{processExit(42), 42},
		{&caisson.RunError{Code: caisson.RunInvalid}, 2},
		{&caisson.RunError{Code: caisson.RunNotFound}, 3},
		{&caisson.RunError{Code: caisson.RunRateLimit}, 6},
		{&caisson.RunError{Code: caisson.RunNoCredits}, 8},
		{&caisson.RunError{Code: caisson.RunAborted}, 9},
		{&caisson.RunError{Code: caisson.RunAgentError}, 10},
		{&caisson.RunError{Code: caisson.RunTimeout}, 124},
		{&caisson.RunError{Code: caisson.RunInternal}, 1},
		{&caisson.RunError{Code: "from the future"}, 1},
		{errors.Join(caisson.Errorf(caisson.NotFound, "x"), errors.New("y")), 3},
		{fmt.Errorf("print: %w", &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}), 141},
		{caisson.Wrap(&net.OpError{Op: "write", Net: "unix", Err: os.NewSyscallError("write", syscall.EPIPE)}, caisson.Unavailable, "x"), 7},
	} {
		if got := a.exitCode(c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
	}
}

// TestErrorsAreEscaped checks that neither text nor JSON lets an error of a stranger act on the terminal.
func TestErrorsAreEscaped(t *testing.T) {
	for _, format := range []string{"table", "json"} {
		var b strings.Builder
		a := &app{stdio: stdio{err: &b}, interrupts: newInterrupts(func() {})}
		a.globals.Output = format
		a.exitCode(caisson.Invalidf("f\x1b", "evil \x1b]0;t\x07 \u202e name\nsecond line"))
		if got := b.String(); strings.ContainsAny(got, "\x1b\x07\u202e") || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %q", format, got)
		}
	}
}

// TestListingsAreEscaped checks names of objects in every form of output.
// TestJSON: characters that HTML would need escapes for have none, wherever they come from, and others keep theirs.
func TestJSON(t *testing.T) {
	for in, want := range map[any]string{
		"a && b <c>":       `"a && b <c>"`,
		`\u0026 "\\u003c"`: `"\\u0026 \"\\\\u003c\""`,
		"\u202e":           `"\u202e"`,
	} {
		if got, err := jsonText(in); err != nil || got != want+"\n" {
			t.Errorf("%q is %s, %v; want %s", in, got, err, want)
		}
	}
	if got, err := jsonText(json.RawMessage(`{"a":"2\u003e\u00261 \\u0026"}`)); err != nil || got != `{"a":"2>&1 \\u0026"}`+"\n" {
		t.Errorf("%s, %v", got, err)
	}
}

func TestListingsAreEscaped(t *testing.T) {
	evil := "a\x1b[2Jb\u202ec\nd\u009bx\U000e0041"
	for _, format := range []string{"table", "json", "jsonl", "yaml"} {
		for _, quiet := range []bool{false, true} {
			var b strings.Builder
			a := &app{stdio: stdio{out: &b, getenv: func(string) string { return "" }}}
			a.globals.Output, a.globals.Quiet = format, quiet
			s := &caisson.Sandbox{ID: caisson.ID(evil), Name: evil, Labels: map[string]string{evil: evil}, State: caisson.State(evil)}
			err := printList(a, []*caisson.Sandbox{s}, sandboxColumns())
			if err == nil {
				err = printOne(a, s, evil, [][2]string{{"Name", evil}})
			}
			if err == nil {
				err = printDone(a, s, evil)
			}
			if got := b.String(); err != nil || strings.ContainsAny(got, "\x1b\u202e\u009b\U000e0041") {
				t.Errorf("%s: %v: %q", format, err, got)
			}
		}
	}
}

// TestEveryCommandHasHelp walks the command line: each command explains itself and shows an example, each flag and
// argument says what it is.
func TestEveryCommandHasHelp(t *testing.T) {
	a := &app{stdio: stdio{out: new(strings.Builder), err: new(strings.Builder), getenv: os.Getenv}, interrupts: newInterrupts(func() {})}
	if err := a.main(t.Context(), []string{"--help"}); err != nil {
		t.Fatal(err)
	}
	var walk func(n *kong.Node)
	walk = func(n *kong.Node) {
		for _, c := range n.Children {
			if c.Hidden {
				continue
			}
			if c.Help == "" || !strings.HasSuffix(c.Help, ".") {
				t.Errorf("%s has the help %q", c.FullPath(), c.Help)
			}
			if len(c.Children) == 0 && !strings.Contains(c.Detail, "Examples:\n\n    ") {
				t.Errorf("%s has no examples", c.FullPath())
			}
			for _, f := range c.Flags {
				if f.Help == "" {
					t.Errorf("%s --%s has no help", c.FullPath(), f.Name)
				}
			}
			for _, p := range c.Positional {
				if p.Help == "" {
					t.Errorf("%s <%s> has no help", c.FullPath(), p.Name)
				}
			}
			walk(c)
		}
	}
	walk(a.parser.Model.Node)
}

// TestConnectsLast checks that the connection is the last parameter of every Run method, so that mistakes in the arguments, which
// Provide methods find, are reported where no daemon can be started.
func TestConnectsLast(t *testing.T) {
	a := &app{stdio: stdio{out: new(strings.Builder), err: new(strings.Builder), getenv: os.Getenv}, interrupts: newInterrupts(func() {})}
	if err := a.main(t.Context(), []string{"version"}); err != nil {
		t.Fatal(err)
	}
	connecting := 0
	var walk func(n *kong.Node)
	walk = func(n *kong.Node) {
		if run := n.Target.Addr().MethodByName("Run"); run.IsValid() {
			for i := range run.Type().NumIn() {
				if run.Type().In(i) == reflect.TypeFor[api]() {
					connecting++
					if i != run.Type().NumIn()-1 {
						t.Errorf("%s connects before it has all of its other parameters", n.FullPath())
					}
				}
			}
		}
		for _, c := range n.Children {
			walk(c)
		}
	}
	walk(a.parser.Model.Node)
	if connecting < 80 {
		t.Errorf("only %d commands connect", connecting)
	}
}

// TestServicesFile: service apply takes the services of a valid file, and names a file that is not.
func TestServicesFile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"services: [{id: web, port: 3000}, {id: worker, command: [./worker]}]": "",
		"services: [{id: web, ports: 3000}]":                                   "services.yaml",
	} {
		c := &serviceApplyCmd{File: filepath.Join(t.TempDir(), "services.yaml"), Prune: true}
		if err := os.WriteFile(c.File, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		req, err := c.ProvideRequest(&app{})
		if want == "" && (err != nil || len(req.Services) != 2 || req.Services[1].ID != "worker" || !req.Prune) {
			t.Errorf("%s: %+v, %v", text, req, err)
		}
		if want != "" && (caisson.KindOf(err) != caisson.Invalid || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
