package house_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/go/packages"
)

// guarded are the packages whose types [TestGuard] checks.
var guarded = []string{"daemon/credential", "daemon/engine", "daemon/events", "job/image", "ledger", "daemon/models", "daemon/repos", "daemon/routes", "daemon/runs", "daemon/sandboxes", "daemon/volumes", "daemon/workspaces"}

// Limits of the types of a guarded package, including promoted methods and fields. [maxMethods] also applies to them.
const (
	maxFields           = 12
	maxInterfaceMethods = 10
)

// TestGuard tests that the types of the guarded packages depend on each other in one direction and are small. The rules are those
// of the methods of [guard]; docs/testing.md explains them.
func TestGuard(t *testing.T) {
	house(t) // Reads the files of all packages, so that a cached result depends on them.
	config := packages.Config{
		Mode: packages.NeedName | packages.NeedImports | packages.NeedCompiledGoFiles | packages.NeedSyntax |
			packages.NeedTypes | packages.NeedTypesInfo,
		// Use the settings of "make build", so that its compiled packages are used.
		Env: append(os.Environ(), "CGO_ENABLED=0"), BuildFlags: []string{"-trimpath"},
	}
	var paths []string
	for _, dir := range guarded {
		paths = append(paths, module+"/"+dir)
	}
	pkgs, err := packages.Load(&config, paths...)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pkgs {
		for _, err := range p.Errors {
			t.Fatal(err)
		}
		for what, n := range newGuard(p.Types, p.TypesInfo, p.Syntax).check() {
			t.Errorf("%s: %s (%d); docs/testing.md says what is wrong with it", strings.TrimPrefix(p.PkgPath, module+"/"), what, n)
		}
	}
}

// TestGuardRules tests what the rules find in a package that breaks each of them.
func TestGuardRules(t *testing.T) {
	many := func(format string, n int) (lines string) {
		for i := range n {
			lines += fmt.Sprintf(format+"\n", i)
		}
		return lines
	}
	src := `package p
		type node struct { next *node; list []*leaf } // data
		type leaf struct { of map[string]node }
		type tree struct { sub []*tree }
		func (tree) walk() {}

		type fields struct { parts; *parts2; f13 func() }
		type parts struct {` + many("f%d int", 8) + `}
		type parts2 struct { *parts2;` + many("g%d int", 3) + `}
		type methods struct { wide }
		func (methods) more() {}
		type wide interface {` + many("f%d()", 25) + `}
		type narrow interface {` + many("g%d()", 10) + `}

		type a struct { i doer } // by an interface
		type doer interface { do() }
		type b struct { a *a }
		func (*b) do() {}

		type c struct { call func() } // by a method as a func
		type d struct { c c }
		func (*d) do2() {}
		func newC(call func()) *c { return &c{call: call} }
		func newD() *d { d := &d{}; d.c = *newC(d.do2); return d }

		type e struct { call func() } // by a literal
		type f struct { e *e; n int }
		func (f *f) start() { f.e = &e{func() { f.n++ }} }

		type deps struct { do doer; now func() int; name string }
		type state struct { do doer; n, m int }
		type own struct { do doer; now func() int }
		func (o *own) ask() int { return o.now() }
		type g struct { deps; state; own *own }
		func (g g) use() { g.now() }
		type h struct { d *deps; s state; o own; x func() }
		func (h) use() {}
	`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	info := &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Selections: map[*ast.SelectorExpr]*types.Selection{},
		Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
	}
	pkg, err := new(types.Config).Check("p", fset, []*ast.File{f}, info)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{
		"cycle tree -> tree": 0, "cycle a -> doer": 0, "cycle doer -> b": 0, "cycle b -> a": 0, "cycle c -> d": 0, "cycle d -> c": 0,
		"cycle e -> f": 0, "cycle f -> e": 0, "cycle methods -> wide": 0, "cycle wide -> methods": 0,
		"fields fields": 13, "methods methods": 26, "interface wide": 25, "bag deps": 2,
	}
	if diff := cmp.Diff(want, newGuard(pkg, info, []*ast.File{f}).check()); diff != "" {
		t.Error(diff)
	}
}

// A guard contains the types of one package and their dependencies.
type guard struct {
	pkg    *types.Package
	info   *types.Info
	own    []*types.Named                       // The package's types except those declared in functions.
	values map[*types.Var][]ast.Expr            // The values that fields, variables and parameters of func types are set to.
	users  map[*types.Var]map[*types.Named]bool // The types whose methods use a field.
}

func newGuard(pkg *types.Package, info *types.Info, files []*ast.File) *guard {
	g := &guard{pkg: pkg, info: info, values: map[*types.Var][]ast.Expr{}, users: map[*types.Var]map[*types.Named]bool{}}
	for _, name := range pkg.Scope().Names() {
		if t, ok := pkg.Scope().Lookup(name).(*types.TypeName); ok && !t.IsAlias() {
			g.own = append(g.own, t.Type().(*types.Named))
		}
	}
	for _, f := range files {
		for _, decl := range f.Decls {
			var receiver *types.Named
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv != nil {
				receiver = named(info.TypeOf(fn.Recv.List[0].Type))
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				g.collect(n, receiver)
				return true
			})
		}
	}
	return g
}

// collect records the assignments and uses in a node of a method, or of another declaration if receiver is nil.
func (g *guard) collect(n ast.Node, receiver *types.Named) {
	switch n := n.(type) {
	case *ast.SelectorExpr:
		if v, ok := g.info.Uses[n.Sel].(*types.Var); ok && v.IsField() && receiver != nil {
			if g.users[v.Origin()] == nil {
				g.users[v.Origin()] = map[*types.Named]bool{}
			}
			g.users[v.Origin()][receiver] = true
		}
	case *ast.CompositeLit:
		st, _ := g.info.TypeOf(n).Underlying().(*types.Struct)
		for i, x := range n.Elts {
			if kv, ok := x.(*ast.KeyValueExpr); ok && st != nil {
				g.set(g.info.Uses[kv.Key.(*ast.Ident)], kv.Value)
			} else if st != nil {
				g.set(st.Field(i), x)
			}
		}
	case *ast.AssignStmt:
		for i, x := range n.Rhs {
			if len(n.Lhs) == len(n.Rhs) {
				g.set(g.object(n.Lhs[i]), x)
			}
		}
	case *ast.ValueSpec:
		for i, x := range n.Values {
			if len(n.Names) == len(n.Values) {
				g.set(g.info.Defs[n.Names[i]], x)
			}
		}
	case *ast.CallExpr:
		if fn, ok := g.object(n.Fun).(*types.Func); ok {
			for i, x := range n.Args {
				if params := fn.Origin().Signature().Params(); i < params.Len() {
					g.set(params.At(i), x)
				}
			}
		}
	}
}

// object returns the object that a name, with or without a selector, refers to; nil for other expressions.
func (g *guard) object(x ast.Expr) types.Object {
	switch x := x.(type) {
	case *ast.Ident:
		return g.info.ObjectOf(x)
	case *ast.SelectorExpr:
		return g.info.Uses[x.Sel]
	}
	return nil
}

func (g *guard) set(to types.Object, x ast.Expr) {
	if v, ok := to.(*types.Var); ok {
		if _, ok := v.Type().Underlying().(*types.Signature); ok {
			g.values[v.Origin()] = append(g.values[v.Origin()], x)
		}
	}
}

// check returns the violations: "rule subject", with the number that is too large if the rule has a limit, or else 0.
func (g *guard) check() map[string]int {
	found := map[string]int{}
	g.cycles(found)
	for _, n := range g.own {
		name := n.Obj().Name()
		count := func(rule string, n, most int) {
			if n > most {
				found[rule+" "+name] = n
			}
		}
		if i, ok := n.Underlying().(*types.Interface); ok {
			count("interface", i.NumMethods(), maxInterfaceMethods)
			continue
		}
		count("methods", types.NewMethodSet(types.NewPointer(n)).Len(), maxMethods)
		count("fields", g.fields(n, nil), maxFields)
		if g.bag(n) {
			count("bag", g.holders(n), 1)
		}
	}
	return found
}

// named returns the type that t is or points to, or nil if it has no name.
func named(t types.Type) *types.Named {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	if n, ok := types.Unalias(t).(*types.Named); ok {
		return n.Origin()
	}
	return nil
}

// fields counts the fields of a struct and, instead of embedded structs of the package, their fields. path contains the
// structs in which it is embedded.
func (g *guard) fields(n *types.Named, path []*types.Named) (count int) {
	st, ok := n.Underlying().(*types.Struct)
	if !ok || slices.Contains(path, n) {
		return 1
	}
	path = append(slices.Clone(path), n)
	for f := range st.Fields() {
		if in := named(f.Type()); f.Embedded() && slices.Contains(g.own, in) {
			count += g.fields(in, path)
		} else {
			count++
		}
	}
	return count
}

// cycles finds each step from one type to another that is part of a cycle. Cycles of types without methods are cycles
// of data, and allowed.
func (g *guard) cycles(found map[string]int) {
	steps := map[*types.Named]map[*types.Named]bool{}
	for _, n := range g.own {
		steps[n] = map[*types.Named]bool{}
		if _, ok := n.Underlying().(*types.Signature); !ok {
			g.holds(n.Underlying(), steps[n])
		}
	}
	reach := map[*types.Named]map[*types.Named]bool{}
	var walk func(from, n *types.Named)
	walk = func(from, n *types.Named) {
		for to := range steps[n] {
			if !reach[from][to] {
				reach[from][to] = true
				walk(from, to)
			}
		}
	}
	for _, n := range g.own {
		reach[n] = map[*types.Named]bool{}
		walk(n, n)
	}
	for _, n := range g.own {
		acts := slices.ContainsFunc(g.own, func(m *types.Named) bool {
			return reach[n][m] && reach[m][n] && (m.NumMethods() > 0 || types.IsInterface(m))
		})
		for to := range steps[n] {
			if acts && reach[to][n] {
				found["cycle "+n.Obj().Name()+" -> "+to.Obj().Name()] = 0
			}
		}
	}
}

// holds adds the package's types that a value of type t contains: in fields, elements and type arguments, through
// pointers, through an interface of the package (every type that implements it), and in funcs.
func (g *guard) holds(t types.Type, to map[*types.Named]bool) {
	switch t := types.Unalias(t).(type) {
	case *types.Named:
		if slices.Contains(g.own, t.Origin()) {
			to[t.Origin()] = true
		}
		for arg := range t.TypeArgs().Types() {
			g.holds(arg, to)
		}
	case *types.Map:
		g.holds(t.Key(), to)
		g.holds(t.Elem(), to)
	case interface{ Elem() types.Type }: // Pointers, slices, arrays, channels.
		g.holds(t.Elem(), to)
	case *types.Struct:
		for f := range t.Fields() {
			g.holds(f.Type(), to)
			g.bound(f.Origin(), to, map[*types.Var]bool{})
		}
	case *types.Interface:
		for _, n := range g.own {
			if !t.Empty() && !types.IsInterface(n) && types.Implements(types.NewPointer(n), t) {
				to[n] = true
			}
		}
	}
}

// bound adds the types that the values of a field, variable or parameter of a func type refer to: the receivers of
// methods, and the types that function literals and calls name.
func (g *guard) bound(v *types.Var, to map[*types.Named]bool, seen map[*types.Var]bool) {
	if seen[v] {
		return
	}
	seen[v] = true
	for _, x := range g.values[v] {
		if s, ok := ast.Unparen(x).(*ast.SelectorExpr); ok && g.info.Selections[s] != nil {
			if field, ok := g.info.Uses[s.Sel].(*types.Var); ok {
				g.bound(field.Origin(), to, seen)
			} else {
				g.holds(g.info.Selections[s].Recv(), to)
			}
			continue
		}
		ast.Inspect(x, func(n ast.Node) bool {
			id, _ := n.(*ast.Ident)
			v, ok := g.info.Uses[id].(*types.Var)
			if ok && !v.IsField() && v.Parent() != g.pkg.Scope() && (v.Pos() < x.Pos() || x.End() < v.Pos()) {
				g.holds(v.Type(), to)
				g.bound(v, to, seen)
			}
			return true
		})
	}
}

// bag reports whether a type is only a collection of dependencies: a struct with at least two fields, of which at most
// one is not a dependency, that has no methods or whose fields are used by methods of other types.
func (g *guard) bag(n *types.Named) bool {
	st, ok := n.Underlying().(*types.Struct)
	if !ok || st.NumFields() < 2 {
		return false
	}
	others, open := 0, n.NumMethods() == 0
	for f := range st.Fields() {
		if !g.dependency(f.Type()) {
			others++
		}
		for user := range g.users[f] {
			open = open || user != n
		}
	}
	return open && others <= 1
}

// dependency reports whether a field of type t is a dependency: an interface, a func, another bag, or a pointer to a
// type with methods. Errors and types of the root package are data.
func (g *guard) dependency(t types.Type) bool {
	if types.Identical(t, types.Universe.Lookup("error").Type()) {
		return false
	}
	switch u := t.Underlying().(type) {
	case *types.Interface, *types.Signature:
		return true
	case *types.Pointer:
		n := named(t)
		return types.NewMethodSet(u).Len() > 0 && (n == nil || n.Obj().Pkg().Path() != module)
	}
	n := named(t)
	return slices.Contains(g.own, n) && g.bag(n)
}

// holders counts the structs with methods that have n or a pointer to it as a field.
func (g *guard) holders(n *types.Named) (count int) {
	for _, h := range g.own {
		if st, ok := h.Underlying().(*types.Struct); ok && h.NumMethods() > 0 &&
			slices.ContainsFunc(slices.Collect(st.Fields()), func(f *types.Var) bool { return named(f.Type()) == n }) {
			count++
		}
	}
	return count
}
