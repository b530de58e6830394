package house_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
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
			p = &pkg{dir: dir, imports: map[string]string{}, lines: map[string]int{}, methods: map[string]int{}}
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
	f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ParseComments)
	if err != nil {
		return err
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

// directions are the packages of this module that a package may import in addition to the root package and internal
// ones. A package that is not listed may import neither drivers nor cores.
var directions = map[string][]string{
	".":                           {},
	"worker":                      {},
	"image":                       {"worker"}, // Worker jobs read untrusted files.
	"image/imagetest":             {"image"},
	"gate":                        {"worker"},
	"gate/fsat":                   {"worker"},
	"gate/overlay":                {"gate", "gate/fsat", "worker"},
	"gate/check":                  {"gate/fsat", "gate/overlay", "worker"},
	"gate/baseline":               {"gate", "gate/check", "gate/fsat", "gate/overlay", "worker"},
	"gate/compare":                {"gate", "gate/baseline", "gate/fsat", "gate/overlay", "worker"},
	"gate/apply":                  {"gate", "gate/baseline", "gate/fsat", "gate/overlay", "worker"},
	"gate/tool":                   {"gate/apply", "gate/baseline", "gate/check", "gate/compare", "gate/overlay", "worker"},
	"gate/gatetest":               {},
	"gate/overlaytest":            {"gate/baseline", "gate/compare", "gate/gatetest", "gate/overlay"},
	"relay":                       {"relay/fetch", "relay/git", "relay/prepare", "relay/push", "relay/receive", "relay/serve", "worker"},
	"relay/git":                   {"worker"}, // git and untrusted repositories are handled by worker jobs.
	"relay/commit":                {"gate/check", "relay/git"},
	"relay/quarantine":            {"relay/commit", "relay/git"},
	"relay/receive":               {"gate/check", "relay/commit", "relay/git", "relay/quarantine", "worker"},
	"relay/prepare":               {"gate/check", "relay/commit", "relay/git", "relay/quarantine", "worker"},
	"relay/remote":                {"relay/git"},
	"relay/fetch":                 {"relay/git", "relay/remote", "worker"},
	"relay/push":                  {"relay/git", "relay/remote", "worker"},
	"relay/serve":                 {"relay/git", "relay/remote", "worker"},
	"relay/packtest":              {"relay/git"},
	"relay/relaytest":             {"gate/check", "relay/git", "relay/packtest", "relay/quarantine", "relay/receive"},
	"relay/transport":             {"relay/git", "relay/remote", "relay/remoteurl", "worker"},
	"relay/front":                 {},
	"forge":                       {"worker", "relay/remoteurl"},
	"forge/forgetest":             {},
	"relay/remoteurl":             {},
	"guestd":                      {},
	"agent":                       {},
	"agent/task":                  {},
	"agent/openclaw":              {},
	"agent/openclaw/install":      {},
	"agent/openclaw/driver":       {"agent/drive", "agent/task"},
	"agent/openclaw/openclawtest": {"agent/openclaw"},
	"agent/drive":                 {"agent/task"},
	"agent/drive/drivetest":       {"agent/drive", "agent/task"},
	"agent/coder":                 {"agent/task"}, // Its output obeys the limits of driver events.
	"agent/coder/sample":          {},
	"sqlite":                      {},
	"sqlite/sqlitetest":           {"sqlite"},
	"storetest":                   {},
	"wire":                        {"wire/flow", "wire/dns", "wire/report"},
	"wire/flow":                   {},
	"wire/dns":                    {},
	"wire/report":                 {},
	"egress":                      {},
	"ledger":                      {},
	"credential":                  {},
	"subruns":                     {},
	"llm":                         {"llm/dialect"},
	"llm/dialect":                 {},
	"llm/openai":                  {"llm/dialect", "llm/internal/jsonscan", "llm/internal/strictjson"},
	"llm/anthropic":               {"llm/dialect", "llm/internal/jsonscan", "llm/internal/strictjson"},
	"llm/gemini":                  {"llm/dialect", "llm/internal/jsonscan", "llm/internal/strictjson"},
	"llm/internal/jsonscan":       {"llm/internal/strictjson"},
	"llm/internal/strictjson":     {"llm/dialect"},
	"llm/internal/dialecttest":    {"llm/dialect"},
	"llm/prices":                  {},
	"llm/remote":                  {"llm/runtoken"},
	"llm/runtoken":                {},
	"llm/scripted":                {},
	"llm/scripted/scriptedtest":   {"llm/scripted"},
	"wireproc":                    {"wire", "egress", "ledger", "llm", "llm/anthropic", "llm/gemini", "llm/openai", "llm/remote", "llm/runtoken", "llm/scripted", "relay/front", "subruns"},
	"runtime/gvisor":              {"runtime/gvisor/lastwrite", "runtime/gvisor/sentry"},
	"runtime/gvisor/lastwrite":    {},
	"runtime/gvisor/sentry":       {"runtime/gvisor/lastwrite"},
	"runtime/fake":                {},
	"runtime/fake/guest":          {"runtime/fake", "guestd"},
	"runtime/runtimetest":         {"guestd"},
	"internal/workertest":         {"worker"},
	"internal/coretest":           {"agent/task", "engine", "forge", "guestd", "httpapi", "image/imagetest", "models", "relay/front", "relay/transport", "relay/remote", "relay/remoteurl", "runs", "runtime/fake", "runtime/fake/guest", "sqlite/sqlitetest", "wire", "worker"},
	"sandboxes":                   {"guestd"},              // The host's side of file access; drivers are passed as interfaces.
	"runs":                        {"agent", "agent/task"}, // Drivers and the other core are passed as interfaces.
	"workspaces":                  {"gate", "gate/apply", "gate/baseline", "gate/check", "gate/compare", "gate/overlay", "gate/tool"},
	"volumes":                     {},
	"events":                      {},
	"models":                      {"ledger", "llm/prices"},
	"repos":                       {"forge", "gate/check", "relay/fetch", "relay/git", "relay/transport", "relay/prepare", "relay/push", "relay/receive", "relay/remote", "relay/remoteurl", "relay/serve"},
	"engine":                      {"events", "models", "subruns", "forge", "gate/baseline", "gate/check", "gate/tool", "relay", "relay/transport", "repos", "volumes", "workspaces", "runs", "agent", "agent/task", "agent/openclaw", "sandboxes", "image", "runtime/gvisor", "sqlite", "wire", "worker", "guestd", "credential", "egress", "ledger"},
	"httpapi":                     {"httpapi/protocol"},
	"httpapi/protocol":            {},
	"httpapi/apitest":             {"httpapi"},
	"client":                      {"httpapi/protocol"},
	"cmd/caisson": {
		"forge", "gate/baseline", "gate/check", "gate/tool", "relay", "relay/transport", "relay/remoteurl", "workspaces", "runs", "workspaces", "agent", "agent/openclaw", "engine", "sandboxes", "httpapi", "client", "image", "guestd", "models", "wire", "worker", "runtime/gvisor/sentry",
		"credential", "wireproc", "egress", "llm/prices", "llm/remote",
	},
	"cmd/caisson-agent":  {"agent/drive", "agent/coder", "agent/openclaw/driver", "agent/openclaw/install"},
	"cmd/caisson-guestd": {"guestd"},
	"cmd/caisson-sentry": {"runtime/gvisor/sentry"},
	"cmd/caisson-worker": {"forge", "gate/tool", "image", "relay", "relay/transport", "worker"},
	"bench":              {"agent/coder/sample", "agent/openclaw", "client", "gate/baseline", "gate/tool", "worker", "httpapi/protocol", "llm/scripted", "engine", "sqlite", "wire", "runtime/gvisor", "runtime/gvisor/sentry", "credential"},
	"bench/gateway":      {"credential", "wireproc", "ledger", "sqlite", "wire"}, // The product's own handlers, without a wire.
	"bench/load":         {},
	"bench/runsc":        {},
	"cmd/caisson-bench":  {"bench", "client", "runtime/gvisor/sentry"},
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

// TestOnePackageComment tests that each package has exactly one package comment.
func TestOnePackageComment(t *testing.T) {
	for dir, p := range house(t) {
		onlyTests := len(p.lines) > 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(p.lines)), func(n string) bool { return !strings.HasSuffix(n, "_test.go") })
		if len(p.comments) != 1 && !onlyTests {
			t.Errorf("package %s has %d package comments %v, want 1", dir, len(p.comments), p.comments)
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
