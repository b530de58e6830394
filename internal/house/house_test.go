package house_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/frozen"
)

const module = "github.com/caisson-dev/caisson"

// pkg is a package of this module, without its tests.
type pkg struct {
	dir      string // "." or a relative path with slashes.
	imports  map[string]string
	comments []string // Files with a package comment.
	lines    map[string]int
	methods  map[string]int // Number of methods by type.
	tests    []string       // Names of test functions.
	misnamed []string       // Doc comments that do not begin with the name of what they describe.
	links    []docLink
	declared map[string]bool // Names of top-level declarations, methods ("T.m" and "m") and struct fields ("T.f").
}

var parsed map[string]*pkg

// house parses all packages of this module, and changes the test's working directory to the root of the module.
func house(t *testing.T) map[string]*pkg {
	t.Helper()
	t.Chdir("../..")
	if parsed != nil {
		return parsed
	}
	pkgs := map[string]*pkg{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		dir := filepath.ToSlash(filepath.Dir(name))
		p := pkgs[dir]
		if p == nil {
			p = &pkg{dir: dir, imports: map[string]string{}, lines: map[string]int{}, methods: map[string]int{}, declared: map[string]bool{}}
			pkgs[dir] = p
		}
		return p.add(name)
	})
	if err != nil {
		t.Fatal(err)
	}
	parsed = pkgs
	return pkgs
}

var testName = regexp.MustCompile(`^(Test|Fuzz)($|[^a-z])`)

func (p *pkg) add(name string) error {
	src, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	p.lines[name] = strings.Count(string(src), "\n")
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, src, parser.ParseComments)
	if err != nil {
		return err
	}
	for _, decl := range f.Decls {
		p.declare(fset, decl)
		if doc, names := describes(decl); doc != nil && doc.Text() != "" && !slices.Contains(names, firstWord(doc)) {
			p.misnamed = append(p.misnamed, fmt.Sprintf("%s: the comment of %s begins with %q", fset.Position(doc.Pos()), names[0], firstWord(doc)))
		}
	}
	if strings.HasSuffix(name, "_test.go") {
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && testName.MatchString(fn.Name.Name) && fn.Name.Name != "TestMain" {
				p.tests = append(p.tests, fn.Name.Name)
			}
		}
		return nil
	}
	if f.Doc != nil {
		p.comments = append(p.comments, name)
	}
	for _, imp := range f.Imports {
		p.imports[strings.Trim(imp.Path.Value, `"`)] = name
	}
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Recv == nil {
			continue
		}
		recv := fn.Recv.List[0].Type
		if star, ok := recv.(*ast.StarExpr); ok {
			recv = star.X
		}
		if id, ok := recv.(*ast.Ident); ok {
			p.methods[id.Name]++
		}
	}
	return nil
}

// A docLink is a link in a doc comment to a name, a method or a field, of this package or, after its name, of another one.
type docLink struct{ at, target string }

// linkPattern leaves out what is all capitals or very short, such as [DONE] and [i].
var linkPattern = regexp.MustCompile(`\[\*?((?:[A-Z]+[a-z]|[a-z]\w[\w.])[\w.]*)\]`)

// declare adds the names and the doc links of a declaration.
func (p *pkg) declare(fset *token.FileSet, decl ast.Decl) {
	link := func(doc *ast.CommentGroup) {
		if strings.HasSuffix(fset.Position(decl.Pos()).Filename, "_test.go") {
			return // The imports of tests are not known.
		}
		for _, m := range linkPattern.FindAllStringSubmatch(doc.Text(), -1) {
			p.links = append(p.links, docLink{fset.Position(doc.Pos()).String(), m[1]})
		}
	}
	switch d := decl.(type) {
	case *ast.FuncDecl:
		link(d.Doc)
		p.declared[d.Name.Name] = true
		if d.Recv != nil {
			recv := d.Recv.List[0].Type
			if star, ok := recv.(*ast.StarExpr); ok {
				recv = star.X
			}
			if generic, ok := recv.(*ast.IndexListExpr); ok {
				recv = generic.X
			}
			if id, ok := recv.(*ast.Ident); ok {
				p.declared[id.Name+"."+d.Name.Name] = true
			}
		}
	case *ast.GenDecl:
		link(d.Doc)
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				link(s.Doc)
				p.declared[s.Name.Name] = true
				ast.Inspect(s.Type, func(n ast.Node) bool {
					if f, ok := n.(*ast.Field); ok {
						link(f.Doc)
						for _, id := range f.Names {
							p.declared[s.Name.Name+"."+id.Name] = true
						}
					}
					return true
				})
			case *ast.ValueSpec:
				link(s.Doc)
				for _, id := range s.Names {
					p.declared[id.Name] = true
				}
			}
		}
	}
}

// resolves reports whether a link in package p leads to a declaration. Links to packages outside of the module are not checked.
func (p *pkg) resolves(target string, pkgs map[string]*pkg) bool {
	if p.declared[target] || types.Universe.Lookup(target) != nil {
		return true
	}
	name, rest, qualified := strings.Cut(target, ".")
	for imp := range p.imports {
		if path.Base(imp) == name {
			if q := pkgs[strings.TrimPrefix(strings.TrimPrefix(imp, module), "/")]; q != nil && imp != module {
				return !qualified || q.declared[rest]
			}
			if imp != module {
				return true
			}
		}
	}
	if name == "caisson" {
		return !qualified || pkgs["."].declared[rest]
	}
	for dir, q := range pkgs { // a package that is not imported
		if path.Base(dir) == name {
			return !qualified || q.declared[rest]
		}
	}
	return qualified && name == strings.ToLower(name) // a package of the standard library
}

// describes returns the doc comment of a declaration and the names that it declares. The comment of a test states what the test
// tests, and that of a group what its members have in common: for those, doc is nil.
func describes(decl ast.Decl) (doc *ast.CommentGroup, names []string) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if strings.HasPrefix(d.Name.Name, "Test") || strings.HasPrefix(d.Name.Name, "Fuzz") || strings.HasPrefix(d.Name.Name, "Benchmark") {
			return nil, nil
		}
		return d.Doc, []string{d.Name.Name}
	case *ast.GenDecl:
		if d.Lparen.IsValid() {
			return nil, nil
		}
		switch s := d.Specs[0].(type) {
		case *ast.TypeSpec:
			return d.Doc, []string{s.Name.Name}
		case *ast.ValueSpec:
			for _, id := range s.Names {
				names = append(names, id.Name)
			}
			return d.Doc, names
		}
	}
	return nil, nil
}

// firstWord returns the first word of a comment after an article, without punctuation.
func firstWord(doc *ast.CommentGroup) string {
	words := strings.Fields(doc.Text())
	if len(words) > 1 && slices.Contains([]string{"A", "An", "The"}, words[0]) {
		words = words[1:]
	}
	return strings.TrimSuffix(strings.TrimRight(words[0], ",.:;"), "'s")
}

// directions are the packages of this module that a package may import in addition to the root package and internal
// ones. A package that is not listed may import neither drivers nor cores.
var directions = map[string][]string{
	".":                                  {},
	"job/worker":                         {},
	"job/image":                          {"job/worker"}, // Worker jobs read untrusted files.
	"job/image/imagetest":                {"job/image"},
	"job/gate":                           {"job/worker"},
	"job/gate/fsat":                      {"job/worker"},
	"job/gate/overlay":                   {"job/gate", "job/gate/fsat", "job/worker"},
	"job/gate/check":                     {"job/gate/fsat", "job/gate/overlay", "job/worker"},
	"job/gate/baseline":                  {"job/gate", "job/gate/check", "job/gate/fsat", "job/gate/overlay", "job/worker"},
	"job/gate/compare":                   {"job/gate", "job/gate/baseline", "job/gate/fsat", "job/gate/overlay", "job/worker"},
	"job/gate/apply":                     {"job/gate", "job/gate/baseline", "job/gate/fsat", "job/gate/overlay", "job/worker"},
	"job/gate/jobs":                      {"job/gate/apply", "job/gate/baseline", "job/gate/check", "job/gate/compare", "job/gate/overlay", "job/worker"},
	"job/gate/gatetest":                  {},
	"job/gate/overlaytest":               {"job/gate/baseline", "job/gate/compare", "job/gate/gatetest", "job/gate/overlay"},
	"job/relay":                          {"job/relay/fetch", "job/relay/git", "job/relay/prepare", "job/relay/push", "job/relay/receive", "job/relay/serve", "job/worker"},
	"job/relay/git":                      {"job/worker"}, // git and untrusted repositories are handled by worker jobs.
	"job/relay/commit":                   {"job/gate/check", "job/relay/git"},
	"job/relay/quarantine":               {"job/relay/commit", "job/relay/git"},
	"job/relay/receive":                  {"job/gate/check", "job/relay/commit", "job/relay/git", "job/relay/quarantine", "job/worker"},
	"job/relay/prepare":                  {"job/gate/check", "job/relay/commit", "job/relay/git", "job/relay/quarantine", "job/worker"},
	"job/relay/remote":                   {"job/relay/git"},
	"job/relay/fetch":                    {"job/relay/git", "job/relay/remote", "job/worker"},
	"job/relay/push":                     {"job/relay/git", "job/relay/remote", "job/worker"},
	"job/relay/serve":                    {"job/relay/git", "job/relay/remote", "job/worker"},
	"job/relay/packtest":                 {"job/relay/git"},
	"job/relay/relaytest":                {"job/gate/check", "job/relay/git", "job/relay/packtest", "job/relay/quarantine", "job/relay/receive"},
	"job/relay/transport":                {"job/relay/git", "job/relay/remote", "job/relay/remoteurl", "job/worker"},
	"job/relay/front":                    {},
	"job/forge":                          {"job/worker", "job/relay/remoteurl"},
	"job/forge/forgetest":                {},
	"job/relay/remoteurl":                {},
	"guest/guestd":                       {"guest/service", "guest/terminal"},
	"guest/service":                      {},
	"job/sshproxy":                       {"job/worker"},
	"guest/terminal":                     {},
	"daemon/agent":                       {},
	"guest/task":                         {},
	"daemon/agent/openclaw":              {},
	"guest/openclaw/install":             {},
	"guest/openclaw/driver":              {"guest/drive", "guest/task"},
	"daemon/agent/openclaw/openclawtest": {"daemon/agent/openclaw"},
	"guest/drive":                        {"guest/task"},
	"guest/coder":                        {"guest/task"}, // Its output obeys the limits of driver events.
	"guest/coder/sample":                 {},
	"daemon/sqlite":                      {},
	"daemon/sqlite/sqlitetest":           {"daemon/sqlite"},
	"daemon/backup":                      {},
	"wire":                               {"wire/flow", "wire/dns", "wire/report"},
	"wire/flow":                          {},
	"wire/dns":                           {},
	"wire/report":                        {},
	"wire/egress":                        {},
	"wire/httpserver":                    {},
	"wire/ingress":                       {"wire/httpserver", "wire/ingress/signedurl"},
	"wire/ingress/signedurl":             {},
	"ledger":                             {},
	"daemon/credential":                  {},
	"wire/subruns":                       {},
	"wire/llm":                           {"wire/llm/dialect"},
	"wire/llm/dialect":                   {},
	"wire/llm/openai":                    {"wire/llm/dialect", "wire/llm/internal/jsonscan", "wire/llm/internal/strictjson"},
	"wire/llm/anthropic":                 {"wire/llm/dialect", "wire/llm/internal/jsonscan", "wire/llm/internal/strictjson"},
	"wire/llm/gemini":                    {"wire/llm/dialect", "wire/llm/internal/jsonscan", "wire/llm/internal/strictjson"},
	"wire/llm/internal/jsonscan":         {"wire/llm/internal/strictjson"},
	"wire/llm/internal/strictjson":       {"wire/llm/dialect"},
	"wire/llm/internal/dialecttest":      {"wire/llm/dialect"},
	"wire/llm/prices":                    {},
	"wire/llm/remote":                    {"wire/llm/runtoken"},
	"wire/llm/runtoken":                  {},
	"wire/llm/scripted":                  {},
	"wire/llm/scripted/scriptedtest":     {"wire/llm/scripted"},
	"wire/wireproc":                      {"wire", "wire/egress", "wire/httpserver", "wire/ingress", "ledger", "wire/llm", "wire/llm/anthropic", "wire/llm/gemini", "wire/llm/openai", "wire/llm/remote", "wire/llm/runtoken", "wire/llm/scripted", "job/relay/front", "wire/subruns"},
	"runtime/gvisor":                     {"runtime/gvisor/lastwrite", "runtime/gvisor/protocol"},
	"runtime/gvisor/protocol":            {},
	"runtime/gvisor/lastwrite":           {},
	"runtime/gvisor/sentry":              {"runtime/gvisor/lastwrite", "runtime/gvisor/protocol"},
	"runtime/fake":                       {},
	"runtime/fake/guest":                 {"runtime/fake", "guest/guestd", "guest/service", "guest/terminal"},
	"runtime/runtimetest":                {"guest/guestd"},
	"internal/workertest":                {"job/worker"},
	"internal/coretest":                  {"guest/task", "daemon/engine", "job/forge", "guest/guestd", "httpapi", "job/image/imagetest", "daemon/models", "job/relay/front", "job/relay/transport", "job/relay/remote", "job/relay/remoteurl", "daemon/repos", "daemon/sandboxes", "daemon/runs", "runtime/fake", "runtime/fake/guest", "daemon/sqlite/sqlitetest", "wire", "job/worker"},
	"daemon/sandboxes":                   {"guest/guestd", "guest/service", "guest/terminal"}, // The host's side of file access; drivers are passed as interfaces.
	"daemon/runs":                        {"daemon/agent", "guest/task"},                      // Drivers and the other core are passed as interfaces.
	"daemon/workspaces":                  {"job/gate", "job/gate/apply", "job/gate/baseline", "job/gate/check", "job/gate/compare", "job/gate/overlay", "job/worker"},
	"daemon/volumes":                     {},
	"daemon/routes":                      {"wire/ingress/signedurl"},
	"daemon/events":                      {},
	"daemon/models":                      {"ledger", "wire/llm/prices"},
	"daemon/repos":                       {"job/forge", "job/gate/check", "job/relay", "job/worker", "job/relay/fetch", "job/relay/git", "job/relay/transport", "job/relay/prepare", "job/relay/push", "job/relay/receive", "job/relay/remote", "job/relay/remoteurl", "job/relay/serve"},
	"daemon/engine":                      {"daemon/backup", "daemon/events", "daemon/models", "wire/subruns", "job/forge", "job/gate/baseline", "job/gate/check", "job/relay/transport", "daemon/repos", "daemon/volumes", "daemon/routes", "daemon/workspaces", "daemon/runs", "daemon/agent", "guest/task", "daemon/agent/openclaw", "daemon/sandboxes", "job/image", "runtime/gvisor", "daemon/sqlite", "wire", "job/worker", "guest/guestd", "daemon/credential", "wire/egress", "ledger", "daemon/sshserver"},
	"daemon/sshserver":                   {"job/sshproxy", "job/worker"},
	"httpapi":                            {"httpapi/protocol"},
	"httpapi/protocol":                   {},
	"httpapi/apitest":                    {"httpapi"},
	"client":                             {"httpapi/protocol"},
	"cmd/caisson": {
		"daemon/backup",
		"job/gate/baseline", "job/gate/check", "job/relay/remoteurl", "daemon/workspaces", "daemon/repos", "daemon/routes", "daemon/runs", "daemon/agent", "daemon/agent/openclaw", "daemon/engine", "daemon/sandboxes", "httpapi", "client", "daemon/models", "wire", "daemon/sshserver",
		"daemon/credential", "wire/wireproc", "wire/egress", "wire/llm/prices", "wire/llm/remote",
	},
	"cmd/caisson-agent":  {"guest/drive", "guest/coder", "guest/openclaw/driver", "guest/openclaw/install"},
	"cmd/caisson-guestd": {"guest/guestd"},
	"cmd/caisson-sentry": {"runtime/gvisor/sentry"},
	"cmd/caisson-worker": {"job/sshproxy", "job/forge", "job/gate/jobs", "job/image", "job/relay", "job/relay/transport", "job/worker"},
	"bench":              {"guest/coder/sample", "daemon/agent/openclaw", "client", "job/gate/baseline", "job/worker", "httpapi/protocol", "wire/llm/scripted", "daemon/engine", "daemon/sqlite", "wire", "runtime/gvisor", "runtime/gvisor/protocol", "daemon/credential"},
	"bench/gateway":      {"daemon/credential", "wire/ingress", "wire/wireproc", "ledger", "daemon/sqlite", "wire"}, // The product's own handlers, without a wire.
	"bench/load":         {},
	"bench/runsc":        {},
	"cmd/caisson-bench":  {"bench", "client"},
	"test":               {"client"},
}

// TestImportsPointOneWay tests the direction of imports: cmd → front doors → cores → root ← drivers.
func TestImportsPointOneWay(t *testing.T) {
	for dir, p := range house(t) {
		allowed, named := directions[dir]
		internal := strings.HasPrefix(dir, "internal/")
		if !named && !internal {
			t.Errorf("package %s is not in the table of directions; say there what it may import", dir)
		}
		for imp, file := range p.imports {
			rel, ours := strings.CutPrefix(imp, module+"/")
			switch {
			case imp == module && dir != ".":
			case ours && (strings.HasPrefix(rel, "internal/") || slices.Contains(allowed, rel)):
			case ours && internal && strings.HasPrefix(rel, dir):
			case ours:
				t.Errorf("%s imports %s: %s may import only the root, internal packages and %v", file, imp, dir, allowed)
			case dir == "." && strings.Contains(strings.Split(imp, "/")[0], "."):
				t.Errorf("%s imports %s: the root package has the standard library below it and nothing else", file, imp)
			}
		}
	}
}

// TestMainProgramWithoutGVisor tests that the main program has nothing of gVisor but its TCP/IP stack, its cgroups and what those need: sandboxes run in
// cmd/caisson-sentry, and package runtime/gvisor/protocol has what the daemon says to it.
func TestMainProgramWithoutGVisor(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "../../cmd/caisson")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, "gvisor.dev/gvisor/pkg/tcpip") {
		t.Fatalf("the main program has no TCP/IP stack; it has %d packages", len(deps))
	}
	for _, dep := range deps {
		for _, code := range []string{"gvisor.dev/gvisor/runsc", "gvisor.dev/gvisor/pkg/sentry", module + "/runtime/gvisor/sentry"} {
			if (dep == code || strings.HasPrefix(dep, code+"/")) && dep != "gvisor.dev/gvisor/runsc/cgroup" {
				t.Errorf("cmd/caisson depends on %s", dep)
			}
		}
	}
}

// TestOnePackageComment tests that each package has exactly one package comment.
func TestOnePackageComment(t *testing.T) {
	for dir, p := range house(t) {
		onlyTests := len(p.lines) > 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(p.lines)), func(n string) bool { return !strings.HasSuffix(n, "_test.go") })
		if len(p.comments) != 1 && !onlyTests {
			t.Errorf("package %s has %d package comments %v, want 1", dir, len(p.comments), p.comments)
		}
	}
}

// TestCommentsNameWhatTheyDescribe tests that doc comments begin with the name of what they describe, so that none is left behind
// when that is renamed.
func TestCommentsNameWhatTheyDescribe(t *testing.T) {
	for _, p := range house(t) {
		for _, m := range p.misnamed {
			t.Error(m)
		}
	}
}

// TestDocLinksResolve tests that links in doc comments lead to declarations.
func TestDocLinksResolve(t *testing.T) {
	pkgs := house(t)
	for _, p := range pkgs {
		for _, l := range p.links {
			if !p.resolves(l.target, pkgs) {
				t.Errorf("%s: [%s] leads to no declaration", l.at, l.target)
			}
		}
	}
}

// TestFrozenTests tests that no test of the list disappears. It may move to another package.
func TestFrozenTests(t *testing.T) {
	var names []string
	for _, p := range house(t) {
		names = append(names, p.tests...)
	}
	slices.Sort(names)
	frozen.Check(t, "test/testdata/frozen-tests.list", slices.Compact(names), func(name string) string { return name },
		"the header of the list says how it is removed")
}

const (
	maxFile    = 800
	maxMethods = 25
)

// TestSizes limits the lines of files and the methods of types.
func TestSizes(t *testing.T) {
	var all []int
	for dir, p := range house(t) {
		for name, n := range p.lines {
			if n > maxFile {
				t.Errorf("%s has %d lines, more than %d: split it by noun", name, n, maxFile)
			}
			if !strings.HasSuffix(name, "_test.go") {
				all = append(all, n)
			}
		}
		for typ, n := range p.methods {
			if n > maxMethods {
				t.Errorf("type %s has %d methods, more than %d: split it by noun", path.Join(dir, typ), n, maxMethods)
			}
		}
	}
	slices.Sort(all)
	t.Logf("%d files, median %d lines, 90%% under %d, largest %d", len(all), all[len(all)/2], all[len(all)*9/10], all[len(all)-1])
}
