package check

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// checkEdit checks a change of the file at path from one text to another. If old is "", the file is new; if new is "", it is
// removed.
func checkEdit(t *testing.T, path, old, new string, rules Rules) caisson.Change {
	t.Helper()
	host := checkedHost(t)
	ch := addedAt(path)
	if old != "" {
		file := filepath.Join(host.Name(), path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(old), 0o644); err != nil {
			t.Fatal(err)
		}
		ch = modifiedAt(path)
	}
	if new == "" {
		ch = removedAt(path)
	}
	ch.Size = int64(len(new))
	changes := []caisson.Change{ch}
	if err := Changes(context.Background(), changes, host, contentsOf(map[string]string{"new": new}), rules); err != nil {
		t.Fatal(err)
	}
	return changes[0]
}

// TestCheckJudged checks files of which tools execute some parts: changes of these parts require a review, other changes pass.
func TestCheckJudged(t *testing.T) {
	const (
		node = `{"name": "x", "version": "1.0.0", "scripts": {"test": "jest"}, "dependencies": {"a": "^1.0.0"}}`
		php  = `{"name": "x/y", "require": {"php": ">=8", "a/b": "^1"}, "scripts": {"test": "phpunit"}}`
		py   = "[build-system]\nrequires = [\"hatchling\"]\n[project]\nname = \"x\"\nversion = \"1\"\ndependencies = [\"a>=1\"]\n[tool.pytest.ini_options]\naddopts = \"-q\"\n"
		rust = "[package]\nname = \"x\"\nversion = \"1.0.0\"\n[dependencies]\na = \"1\"\nb = { version = \"1\", features = [\"f\"] }\n"
		mk   = "# Builds it.\nall:\n\tgo build \\\n\t\t-v\n"
		lint = `{"rules": {"semi": "error", "import/named": ["error", {"ignore": ["x"]}], "n/no-sync": 1}, "plugins": ["a"]}`
		fmt  = `{"semi": true}`
	)
	with := func(s string, pairs ...string) string {
		r := strings.NewReplacer(pairs...).Replace(s)
		if r == s {
			t.Fatalf("%q does not change %q", pairs, s)
		}
		return r
	}
	for _, c := range []struct {
		name, path, old, new, verdict string
	}{
		{"a version", "package.json", node, with(node, "^1.0.0", "^1.2.0"), pass},
		{"its own version", "package.json", node, with(node, `"1.0.0"`, `"1.0.1"`), pass},
		{"a description", "web/package.json", node, with(node, `"name"`, `"description": "scripts", "name"`), pass},
		{"a dependency", "package.json", node, with(node, `{"a"`, `{"b": "workspace:*", "a"`), pass},
		{"only white space", "package.json", node, with(node, ", ", ",\n"), pass},
		{"another order", "package.json", node, `{"scripts": {"test": "jest"}, "version": "1.0.0", "name": "x", "dependencies": {"a": "^1.0.0"}}`, pass},
		{"no scripts any more", "package.json", node, with(node, `, "scripts": {"test": "jest"}`, ""), ask},
		{"removed", "package.json", node, "", pass},
		{"new, without scripts", "package.json", "", `{"name": "x", "dependencies": {"a": "1"}}`, pass},
		{"new, with scripts", "package.json", "", node, ask},
		{"a script", "package.json", node, with(node, "jest", "jest; curl x"), ask},
		{"a new script", "package.json", node, with(node, `"test": "jest"`, `"test": "jest", "postinstall": "x"`), ask},
		{"in other case", "Package.JSON", "", node, ask},
		{"a program", "package.json", node, with(node, `"name"`, `"bin": {"ls": "x.js"}, "name"`), ask},
		{"hooks", "package.json", node, with(node, `"name"`, `"husky": {"hooks": {"pre-commit": "x"}}, "name"`), ask},
		{"staged", "package.json", node, with(node, `"name"`, `"lint-staged": {"*.js": "x"}, "name"`), ask},
		{"builds of dependencies", "package.json", node, with(node, `"name"`, `"pnpm": {"onlyBuiltDependencies": ["a"]}, "name"`), ask},
		{"another package manager", "package.json", node, with(node, `"name"`, `"packageManager": "yarn@https://x/y.js", "name"`), ask},
		{"a key that nobody knows", "package.json", node, with(node, `"name"`, `"frobnicate": 1, "name"`), ask},
		{"another source", "package.json", node, with(node, "^1.0.0", "git+ssh://git@x/y"), ask},
		{"another source, short", "package.json", node, with(node, "^1.0.0", "x/y"), ask},
		{"another package", "package.json", node, with(node, "^1.0.0", "npm:b@1"), ask},
		{"an archive", "package.json", node, with(node, "^1.0.0", "evil.TGZ"), ask},
		{"an archive of another kind", "package.json", node, with(node, "^1.0.0", "evil.tar.gz"), ask},
		{"a directory without a slash", "package.json", node, with(node, "^1.0.0", ".evil"), ask},
		{"a package of a configuration", "package.json", node, with(node, `"scripts"`, `"browserslist": ["extends browserslist-config-x"], "scripts"`), ask},
		{"a directory", "package.json", node, with(node, "^1.0.0", "file:../x"), ask},
		{"a name twice", "package.json", node, with(node, `"name"`, `"scripts": {"test": "x"}, "name"`), ask},
		{"an escaped name", "package.json", node, with(node, `"name"`, `"s\u0063ripts": {"test": "x"}, "name"`), ask},
		{"not JSON", "package.json", node, node + "x", ask},
		{"no object", "package.json", node, "[]", ask},
		{"a comment", "package.json", node, "// x\n" + node, ask},
		{"a byte order mark", "package.json", node, "\ufeff" + node, ask},
		{"not UTF-8", "package.json", node, with(node, `"x"`, "\"\xff\""), ask},
		{"deep", "package.json", node, with(node, `"name"`, `"description": `+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`, "name"`), ask},
		{"large", "package.json", node, with(node, `"name"`, strings.Repeat(" ", 1<<20)+`"name"`), ask},
		{"the old one is not JSON", "package.json", "x", `{"name": "x"}`, pass},
		{"the old one is not JSON, scripts", "package.json", "x", node, ask},
		{"a file of another name", "package.json.md", "", node, pass},

		{"a requirement", "composer.json", php, with(php, "^1", "^2"), pass},
		{"a script", "composer.json", php, with(php, "phpunit", "x"), ask},
		{"a repository", "composer.json", php, with(php, `"name"`, `"repositories": [{"type": "path", "url": "x"}], "name"`), ask},

		{"a dependency", "pyproject.toml", py, with(py, "a>=1", `a[b]>=2; python_version < \"3.9\"", "c`), pass},
		{"a version", "pyproject.toml", py, with(py, `version = "1"`, "version = \"2\" # now"), pass},
		{"a comment", "pyproject.toml", py, "# x\n\n" + py, pass},
		{"a dependency from elsewhere", "pyproject.toml", py, with(py, "a>=1", "a @ https://x/y"), ask},
		{"poetry", "pyproject.toml", py, py + "[tool.poetry.group.dev.dependencies]\na = {version = \"1\", extras = [\"b\"]}\n", pass},
		{"poetry, a path", "pyproject.toml", py, py + "[tool.poetry.group.dev.dependencies]\na = {path = \"b\"}\n", ask},
		{"the build backend", "pyproject.toml", py, with(py, "hatchling", "x"), ask},
		{"a build hook", "pyproject.toml", py, py + "[tool.hatch.build.hooks.custom]\n", ask},
		{"options of tests", "pyproject.toml", py, with(py, "-q", "-p x"), ask},
		{"a program", "pyproject.toml", py, with(py, "[tool.py", "[project.scripts]\nx = \"y:z\"\n[tool.py"), ask},
		{"not TOML", "pyproject.toml", py, py + "=", ask},
		{"dotted", "pyproject.toml", py, py + strings.Repeat("a.", 1000) + "a = 1\n", ask},

		{"a dependency", "Cargo.toml", rust, with(rust, `a = "1"`, `a = "2"`, `version = "1"`, `version = "1.5"`), pass},
		{"of one target", "x/Cargo.toml", rust, rust + "[target.'cfg(unix)'.dependencies]\nc = \"1\"\n", pass},
		{"a feature", "Cargo.toml", rust, rust + "[features]\ndefault = [\"b\"]\n", pass},
		{"the build script", "Cargo.toml", rust, with(rust, "[dep", "build = \"x.rs\"\n[dep"), ask},
		{"another source", "Cargo.toml", rust, with(rust, `a = "1"`, `a = { git = "https://x/y" }`), ask},
		{"another package", "Cargo.toml", rust, with(rust, `a = "1"`, `a = { version = "1", package = "z" }`), ask},
		{"a patch", "Cargo.toml", rust, rust + "[patch.crates-io]\na = { path = \"x\" }\n", ask},
		{"a macro", "Cargo.toml", rust, rust + "[lib]\nproc-macro = true\n", ask},

		{"severities", ".eslintrc.json", lint, with(lint, `"error"`, `"off"`, "1", `["warn"]`), pass},
		{"options of a rule of ESLint", ".eslintrc", lint, with(lint, `"semi": "error"`, `"semi": [2, "never"]`), pass},
		{"a rule of a plugin", ".eslintrc.json", lint, with(lint, `"n/`, `"@typescript-eslint/no-shadow": "warn", "n/`), pass},
		{"without a rule of a plugin", ".eslintrc.json", lint, with(lint, `, "n/no-sync": 1`, ""), pass},
		{"new, with severities", ".eslintrc.json", "", `{"rules": {"a/b": "off", "a/c": [0], "semi": [1, "never"]}}`, pass},
		{"options of a rule of a plugin", ".eslintrc.json", lint, with(lint, `["x"]`, `["y"]`), ask},
		{"options of a rule that had none", ".eslintrc.json", lint, with(lint, "1", `[1, {"resolvePaths": ["./x"]}]`), ask},
		{"no options any more", ".eslintrc.json", lint, with(lint, `, {"ignore": ["x"]}`, ""), ask},
		{"one more option", ".eslintrc.json", lint, with(lint, `["x"]}`, `["x"]}, "./y"`), ask},
		{"a new rule with options", ".eslintrc.json", lint, with(lint, `"n/`, `"@a/x": ["off", {"project": "./x"}], "n/`), ask},
		{"new, with options", "web/.eslintrc.json", "", `{"rules": {"node/no-missing-import": [2, {"x": ["./y"]}]}}`, ask},
		{"an escaped name of a rule", ".eslintrc.json", lint, with(lint, `"n/no-sync": 1`, `"n\u002fno-sync": [1, "./x"]`), ask},
		{"no severity", ".eslintrc.json", lint, with(lint, "1", `"./x"`), ask},
		{"no severity in a list", ".eslintrc.json", lint, with(lint, "1", "[]"), ask},
		{"an object for a severity", ".eslintrc.json", lint, with(lint, "1", `{"a": "./x"}`), ask},
		{"rules that are a list", ".eslintrc.json", "{}", `{"rules": ["a/b"]}`, ask},
		{"settings", ".eslintrc.json", lint, with(lint, `"plugins"`, `"settings": {"import/resolver": "./x"}, "plugins"`), ask},
		{"rules of some files", ".eslintrc.json", lint, with(lint, `"plug`, `"overrides": [{"rules": {"a/b": 0}}], "plug`), ask},
		{"a plugin", ".eslintrc.json", lint, with(lint, `"a"`, `"./x"`), ask},
		{"YAML", ".eslintrc", "rules: {}\n", "rules: {a: 1}\n", ask},
		{"style", ".prettierrc", fmt, with(fmt, "true", "false"), pass},
		{"a plugin", ".prettierrc", fmt, with(fmt, "true", `true, "plugins": ["./x.js"]`), ask},

		{"a comment", "Makefile", mk, with(mk, "# Builds it.\n", "# Builds all of it.\n#\n\n"), pass},
		{"a comment, in CRLF", "Makefile", mk, with(mk, "# Builds it.\n", "# Builds it.\r\n\r\n"), pass},
		{"removed", "Makefile", mk, "", pass},
		{"a comment, of automake", "Makefile.am", mk, with(mk, "# Builds it.\n", "# Builds all of it.\n"), pass},
		{"a private field", "Makefile.js", "class a {\n}\n", "class a {\n#x = 1;\n}\n", ask},
		{"a comment, of Perl", "Makefile.PL", mk, with(mk, "# Builds it.\n", "# Builds all of it.\n"), ask},
		{"an interpreter", "rules.mk", "#!/usr/bin/make -f\n" + mk, "#!./evil\n" + mk, ask},
		{"a new interpreter", "rules.mk", mk, "#!./evil\n" + mk, ask},
		{"a command", "Makefile", mk, with(mk, "go build", "go test"), ask},
		{"new", "GNUmakefile", "", mk, ask},
		{"new, below", "x/makefile", "", mk, ask},
		{"new, included", "x/rules.mk", "", mk, ask},
		{"new, of automake", "Makefile.am", "", mk, ask},
		{"new, with comments only", "Makefile", "", "# nothing\n", pass},
		{"a comment that goes on", "Makefile", mk, with(mk, "# Builds it.\n", "# Builds it. \\\n"), ask},
		{"a comment of a command", "Makefile", mk, mk + "\t# $(shell x)\n", ask},
		{"a comment in a command", "Makefile", mk, with(mk, "\t\t-v", "# x\n\t\t-v"), ask},
		{"an empty line in a command", "Makefile", mk, with(mk, "\\\n", "\\\n\n"), ask},
		{"a comment in a definition", "Makefile", "define x\n# a\nendef\n", "define x\n# b\nendef\n", ask},
		{"another prefix of commands", "Makefile", ".RECIPEPREFIX = \\#\nall:\n# a\n", ".RECIPEPREFIX = \\#\nall:\n# b\n", ask},
		{"a zero byte", "Makefile", mk, mk + "# \x00\n", ask},
		{"a runner", "Makefile.toml", "[tasks.x]\nscript = '''\n#!@a\n'''\n", "[tasks.x]\nscript = '''\n#!@b\n'''\n", ask},
	} {
		got := checkEdit(t, c.path, c.old, c.new, Rules{})
		if got.Verdict != c.verdict || c.verdict == ask && !hasFinding(got, checkPath, ask) {
			t.Errorf("%s: %s: %s %v, want %s", c.path, c.name, got.Verdict, got.Finding, c.verdict)
		}
		if got := checkEdit(t, c.path, c.old, c.new, Rules{Allow: []string{c.path}}); got.Verdict != pass {
			t.Errorf("%s: %s, allowed: %s %v", c.path, c.name, got.Verdict, got.Finding)
		}
	}
	// The old content at another path does not matter here, and neither does a symlink.
	moved := but(addedAt("package.json"), func(c *caisson.Change) {
		c.Kind, c.OldPath, c.OldType = caisson.ChangeRenamed, "x/package.json", fsat.TypeFile
	})
	changes := []caisson.Change{moved, linkAt("x/Makefile", "y")}
	if err := Changes(context.Background(), changes, checkedHost(t), contentsOf(map[string]string{"new": node}), Rules{}); err != nil || verdictsOf(changes) != "ask ask" {
		t.Errorf("%v: %v", err, changes)
	}
	if got := checkEdit(t, "package.json", node, with(node, "jest", "x"), Rules{}); !strings.Contains(got.Finding[0].Message, `"scripts" changes`) {
		t.Errorf("the message does not say what changes: %v", got.Finding)
	}
	// A merge may take the content of either parent.
	change := modifiedAt("package.json")
	for new, want := range map[string]string{node: pass, with(node, "jest", "y"): pass, with(node, "jest", "z"): ask} {
		one := []caisson.Change{change}
		base := memoryTree{"package.json": node + "\x00" + with(node, "jest", "y") + "\x00"}
		if err := ChangesIn(t.Context(), one, base, contentsOf(map[string]string{"new": new}), Rules{History: true}); err != nil || one[0].Verdict != want {
			t.Errorf("a merge with %s: %v, %+v", new, err, one[0])
		}
	}
}

// TestCheckRunning checks at least one file of each family that tools execute as a whole, and ordinary files that they do not.
func TestCheckRunning(t *testing.T) {
	for verdict, paths := range map[string][]string{
		deny: {
			"_darcs/prefs/defaults", ".sourcehut/x.yml", ".build.yml", ".build.yaml", ".builds/x.yml", ".hg/hgrc", ".sl/config", ".pijul/config", ".fslckout",
			"x/CVS/Root",
		},
		ask: {
			"conftest.py", "tests/conftest.py", "setup.py", "setup.cfg", "tox.ini", "noxfile.py", "build.rs", "crates/x/build.rs", ".eslintrc.js", ".eslintrc.cjs",
			"eslint.config.js", "eslint.config.mjs", "eslint.config.ts", ".prettierrc.js", ".prettierrc.cjs", ".prettierrc.mjs",
			"prettier.config.js", ".pylintrc", ".rubocop.yml", "gradle/wrapper/gradle-wrapper.jar", "gradle/wrapper/gradle-wrapper.properties",
			"gradlew", "build.gradle", "build.gradle.kts", "CODEOWNERS", ".github/CODEOWNERS", "docs/CODEOWNERS", "vercel.json", "netlify.toml",
			"Justfile", "Taskfile.yml", "Rakefile", "lib/tasks/x.rake", "Gemfile", "CMakeLists.txt", "cmake/x.cmake", "vite.config.ts", "gulpfile.js",
			"App.csproj", "Directory.Build.props", "flake.nix", "docker-compose.yml", "docker-compose.override.yml", "phpunit.xml.dist", ".lintstagedrc",
			"ESLINT.CONFIG.JS", "mvnw", "pom.xml", "Makefile.toml", "crates/x/makefile.toml",
		},
		pass: {
			"package-lock.json", "Makefile.d/x", "make.go", "confte.py", "setup.go", "src/build.rs.md", "eslint.md", "config.js", "src/app.config.ts", "gradle.md",
			"owners.go", "Gemfile.lock", "go.mod", "main.tf", "requirements.txt", "Dockerfile", "tsconfig.json", "README.md", "x.config", "darcs/x", "cvs/main.go",
			"src/main.py",
		},
	} {
		for _, path := range paths {
			if got := checkOne(t, modifiedAt(path), Rules{}); got.Verdict != verdict || verdict != pass && !hasFinding(got, checkPath, verdict) {
				t.Errorf("%s: %s %v, want %s", path, got.Verdict, got.Finding, verdict)
			}
		}
	}
}

// TestJudgedTime compares inputs that take parsers the longest.
func TestJudgedTime(t *testing.T) {
	var dotted strings.Builder
	for i := range 1000 {
		dotted.WriteString("a" + strconv.Itoa(i) + strings.Repeat(".a", maxLineDots) + " = 1\n")
	}
	for name, text := range map[string]string{
		"brackets":    "a = " + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "\n",
		"dotted keys": dotted.String(),
		"tables":      strings.Repeat("[[a]]\n", 4000),
	} {
		start := time.Now()
		_, ok := contentRuleFor("pyproject.toml").compareVersions([]string{text}, text+"[tool.x]\n")
		t.Logf("%s: %v in %v", name, ok, time.Since(start))
		if ok {
			t.Errorf("%s: passes", name)
		}
	}
}

// FuzzJudged checks that equal files are equal, that no input causes a failure, and that a new key that is not inert is always
// found.
func FuzzJudged(f *testing.F) {
	for _, name := range []string{"package.json", "pyproject.toml", "Makefile", "composer.json"} {
		f.Add(name, `{"a": 1, "scripts": {"x": [true, null, 1.5]}}`, `{"a": 1}`)
		f.Add(name, "[a]\nb = 1\n", "[project]\nname = \"x\"\n")
		f.Add(name, "# x\nall:\n\tx \\\n# y\n", "define\n")
	}
	f.Fuzz(func(t *testing.T, name, old, new string) {
		j := contentRuleFor(name)
		if j == nil || len(old) > 1<<14 || len(new) > 1<<14 {
			return
		}
		_, ok := j.compareVersions([]string{old}, new)
		if !ok {
			return
		}
		if _, back := j.compareVersions([]string{new}, new); !back {
			t.Fatalf("%q passes and does not compare with itself", new)
		}
		if m, err := decodeJSON(new); err == nil && name == "package.json" && m["scripts"] != nil {
			if o, err := decodeJSON(old); err != nil || o["scripts"] == nil {
				t.Fatalf("the scripts of %q pass after %q", new, old)
			}
		}
	})
}
