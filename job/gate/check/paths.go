package check

import (
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/fsat"
)

// A protection is a list of names, with the verdict on changes of paths that have one of these names, and of the paths below
// them.
type protection struct {
	verdict      string // the verdict on a change: deny or ask
	reason       string // the message of the finding
	neverAllowed bool   // Rules.Allow cannot allow changes of the protected paths
	// names are in lower case and match names of any case in any directory, because the workspace may be a home directory, or
	// contain several repositories. A name has at most maxNameParts parts; a name of one part may have wildcards. "name.*" and
	// "*.name", with at most stemDots dots in name, are found through an index; other wildcards are compared one by one.
	names []string
}

// maxNameParts is the maximum number of path elements in a name of a protection. For example, .docker/config.json has two.
const maxNameParts = 3

// howToAllow is the part of a message that tells how to allow a change that is denied because of its path.
const howToAllow = "if that is wanted, name the path in workspaces.rules.allow of the configuration or, for a repository, in caisson repo add --allow"

// protections lists the files that tools execute automatically, that people execute routinely, or whose instructions agents
// follow. Of several protections that match, the first one applies. Files of which only some parts are executed are in
// contentRules.
var protections = []protection{
	{caisson.VerdictDeny, "keys and trust of the host's user are never changed", true, []string{
		".ssh", ".gnupg", ".aws", ".kube", ".docker/config.json", ".netrc", ".git-credentials", ".config/gcloud", ".config/gh",
		".password-store",
	}},
	{caisson.VerdictDeny, "hooks run by themselves; " + howToAllow, false, []string{
		".husky", ".githooks", ".git-hooks", ".hooks", ".lefthook", "lefthook.yml", "lefthook.yaml", ".lefthook.yml", ".lefthook.yaml",
		"lefthook-local.yml", ".pre-commit-config.yaml", ".pre-commit-config.yml", ".pre-commit-hooks.yaml", ".overcommit.yml", ".hg",
		".svn", ".bzr", ".jj", ".sl", "_darcs", ".pijul", ".fslckout", "_fossil_", ".fossil-settings", ".fossil", "_mtn", ".bitkeeper", ".repo",
		"{arch}", ".arch-ids", "cvs/root", "cvs/entries", "cvs/repository", "cvsroot",
	}},
	{caisson.VerdictDeny, "continuous integration runs this with its secrets; " + howToAllow, false, []string{
		".github/workflows", ".github/actions", ".forgejo", ".gitea", ".gitlab-ci.yml", ".gitlab-ci.yaml", ".gitlab/ci", ".circleci",
		"jenkinsfile", "jenkinsfile.*", "*.jenkinsfile", ".travis.yml", ".drone.yml", ".drone.yaml", ".drone.star", ".woodpecker",
		".woodpecker.yml", ".woodpecker.yaml", ".buildkite", "azure-pipelines.yml", "azure-pipelines.yaml", ".azure-pipelines",
		"bitbucket-pipelines.yml", "appveyor.yml", ".appveyor.yml", ".cirrus.yml", ".cirrus.star", ".semaphore", ".teamcity", ".tekton",
		"cloudbuild.yaml", "cloudbuild.yml", "buildspec.yml", "buildspec.yaml", "wercker.yml", ".builds", ".build.yml", ".build.yaml",
		".sourcehut", ".ci", "codefresh.yml", "bitrise.yml", ".zuul.yaml", ".zuul.d", ".buildbot", ".concourse", "action.yml", "action.yaml", ".github/dependabot.yml", "renovate.json", ".renovaterc*",
	}},
	{caisson.VerdictAsk, "it says whose approval a change needs", false, []string{"codeowners"}},
	{caisson.VerdictAsk, "deployments run what this says, with their secrets", false, []string{
		"vercel.json", "now.json", "netlify.toml", "fly.toml", "render.yaml", "railway.json", "railway.toml", "wrangler.toml", "wrangler.json",
		"wrangler.jsonc", "firebase.json", "amplify.yml", "serverless.yml", "serverless.yaml", "procfile", ".platform.app.yaml", ".ebextensions",
		"skaffold.yaml", ".readthedocs.yml", ".readthedocs.yaml",
	}},
	{caisson.VerdictAsk, "editors may run this when they open the directory", false, []string{
		".vscode", ".idea", ".fleet", ".zed", ".nova", ".vs", "*.code-workspace", "*.sublime-project", ".exrc", ".vimrc", ".gvimrc", ".nvimrc",
		".nvim.lua", ".lvimrc", "_vimrc", ".dir-locals.el", ".dir-locals-2.el", ".emacs", ".emacs.d", ".devcontainer", ".devcontainer.json",
		"*.desktop", ".directory", "desktop.ini", "autorun.inf", "*.lnk", "*.url", "*.webloc", "*.iml", "*.ipr", "*.iws", ".run", ".project",
		".externaltoolbuilders", ".theia", ".gitpod.yml", ".replit", ".idx", "devfile.yaml", ".devfile.yaml", ".clangd", ".luarc.json",
		"hie.yaml",
	}},
	{caisson.VerdictAsk, "agents on the host follow this, or run what it names", false, []string{
		".claude", ".claude.json", "claude.md", "claude.local.md", "agents.md", "agents.override.md", ".agents", ".cursor", ".cursorrules",
		".codex", ".gemini", "gemini.md", ".windsurf", ".windsurfrules", ".clinerules", ".roo", ".roorules", ".aider*", ".continue",
		".mcp.json", "mcp.json", ".github/copilot-instructions.md", ".github/instructions", ".opencode", "opencode.json", "opencode.jsonc",
		".openclaw", ".goosehints", ".junie", ".kiro", ".amazonq", ".caisson", "caisson.yaml", "caisson.yml", "skill.md",
	}},
	{caisson.VerdictAsk, "git may run what this names", false, []string{
		".gitmodules", ".gitattributes", ".gitconfig", ".config/git", ".lfsconfig", ".gitlint", ".git-blame-ignore-revs",
	}},
	{caisson.VerdictAsk, "shells and tools run this by themselves", false, []string{
		".envrc", ".direnvrc", ".mise.toml", "mise.toml", ".mise", ".config/mise", ".tool-versions", ".bashrc", ".bash_profile", ".bash_login",
		".bash_logout", ".bash_aliases", ".profile", ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc",
		".login", ".inputrc", ".config/fish", ".config/autostart", ".config/systemd", ".local/bin", ".local/share/applications", ".xinitrc",
		".xprofile", ".xsession", ".pam_environment", ".tmux.conf", ".screenrc", ".gdbinit", ".lldbinit", ".pythonrc", ".pdbrc",
		"sitecustomize.py", "usercustomize.py", "*.pth", ".irbrc", ".pryrc", ".rprofile", ".psqlrc", ".sqliterc", ".npmrc", ".yarnrc",
		".yarnrc.yml", ".yarn", ".pnpmfile.cjs", "bunfig.toml", ".cargo", ".bazelrc", ".bundle", ".mvn", ".gradle", ".sbtopts", ".jvmopts",
		"pip.conf", ".config/pip", ".pypirc", "launchagents", ".crontab", ".forward", ".procmailrc", ".hgrc", ".arcconfig", ".iex.exs", ".ghci",
		".ocamlinit", "ansible.cfg", "rust-toolchain", "rust-toolchain.toml", ".pnp.*",
	}},
	{caisson.VerdictAsk, "test runners, linters and formatters run it, or what it names, whenever they run, and editors run them", false, []string{
		"conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "noxfile.py", ".pylintrc", "pylintrc", ".pylintrc.toml", "pylintrc.toml", "mypy.ini",
		".mypy.ini", ".flake8", ".coveragerc", ".rubocop.yml", ".rubocop_todo.yml", ".rspec", ".simplecov", ".solargraph.yml", ".haml-lint.yml",
		".erb-lint.yml", ".luacheckrc", ".busted", ".perlcriticrc", ".credo.exs", ".formatter.exs", ".php-cs-fixer.php",
		".php-cs-fixer.dist.php", "phpunit.xml*", "phpstan.neon*", "psalm.xml*", "rector.php", ".golangci.*", ".custom-gcl.*",
		".eslintrc.js", ".eslintrc.cjs", ".eslintrc.mjs", ".eslintrc.yml", ".eslintrc.yaml", "eslint.config.*", ".prettierrc.js", ".prettierrc.cjs",
		".prettierrc.mjs", ".prettierrc.ts", ".prettierrc.cts", ".prettierrc.mts", ".prettierrc.yml", ".prettierrc.yaml", ".prettierrc.json5",
		".prettierrc.toml", "prettier.config.*", ".stylelintrc", ".stylelintrc.*", "stylelint.config.*", ".commitlintrc", ".commitlintrc.*",
		"commitlint.config.*", ".lintstagedrc", ".lintstagedrc.*", "lint-staged.config.*", ".huskyrc", ".huskyrc.*", ".simple-git-hooks.*",
		"simple-git-hooks.*", ".mocharc.*", ".nycrc", ".nycrc.*", "jest.config.*", "vitest.config.*", "vitest.workspace.*", "playwright.config.*",
		"cypress.config.*", "karma.conf.*", "wdio.conf.*", ".releaserc", ".releaserc.*", "release.config.*",
	}},
	{caisson.VerdictAsk, "builds and installations run it, or what it names", false, []string{
		"setup.py", "setup.cfg", "hatch_build.py", "hatch.toml", "pdm_build.py", "build.rs", "binding.gyp", "*.mak", "justfile", ".justfile", "*.just",
		"taskfile.yml", "taskfile.yaml", "taskfile.dist.yml", "taskfile.dist.yaml", "rakefile", "rakefile.rb", "*.rake", "gemfile", "*.gemspec",
		"guardfile", "fastfile", "podfile", "dangerfile", "vagrantfile", "brewfile", "config.ru", "magefile.go", "cmakelists.txt", "*.cmake",
		"cmakepresets.json", "cmakeuserpresets.json", "meson.build", "configure.ac", "sconstruct", "sconscript", "wscript", "premake5.lua",
		"xmake.lua", "build.zig", "build.bazel", "workspace.bazel", "module.bazel", "*.bzl", "tiltfile", "earthfile", "gradlew", "gradlew.bat",
		"gradle-wrapper.jar", "gradle-wrapper.properties", "gradle.properties", "*.gradle", "*.gradle.kts", "buildsrc", "mvnw", "mvnw.cmd",
		"pom.xml", "build.xml", "*.sbt", "build.sc", "build.mill", "*.csproj", "*.fsproj", "*.vbproj", "*.vcxproj", "*.props", "*.targets",
		"directory.build.rsp", "nuget.config", "global.json", "dotnet-tools.json", "mix.exs", "rebar.config", "rebar.config.script", "setup.hs",
		"package.swift", "flake.nix", "shell.nix", "default.nix", "guix.scm", "config.nims", "*.nimble", "makefile.pl", "build.pl",
		"pnpm-workspace.yaml", "turbo.json", "nx.json", "lerna.json", "deno.json", "deno.jsonc", "gulpfile.*", "gruntfile.*", ".babelrc",
		".babelrc.*", "babel.config.*", "webpack.config.*", "rollup.config.*", "vite.config.*", "rspack.config.*", "rsbuild.config.*",
		"tsup.config.*", "postcss.config.*", ".postcssrc", ".postcssrc.*", "tailwind.config.*", "next.config.*", "nuxt.config.*",
		"svelte.config.*", "astro.config.*", "metro.config.*", "craco.config.*", "compose.yml", "compose.yaml", "docker-compose.*",
		"makefile.toml",
	}},
}

// protectedPaths returns an index from names to indexes in protections, and a map of the same form for the names with wildcards
// that must be compared one by one.
var protectedPaths = sync.OnceValues(func() (index map[string]int, wild map[string]int) {
	index, wild = map[string]int{}, map[string]int{}
	for i, p := range protections {
		for _, name := range p.names {
			stem, isStem := strings.CutSuffix(name, ".*")
			end, isEnd := strings.CutPrefix(name, "*.")
			switch {
			case !strings.ContainsAny(name, "*?["),
				isStem && !strings.ContainsAny(stem, "*?[") && strings.Count(stem, ".") <= stemDots,
				isEnd && !strings.ContainsAny(end, "*?[") && strings.Count(end, ".") <= stemDots:
				index[name] = i
			default:
				wild[name] = i
			}
		}
	}
	return index, wild
})

// stemDots is the maximum number of dots in the part "name" of a pattern "name.*" or "*.name" that is in an index.
const stemDots = 2

// protectionOf returns the first protection that matches a path, or nil. key is the path in the form that pathKey returns.
func protectionOf(key string) *protection {
	index, wild := protectedPaths()
	first := len(protections)
	look := func(name string) {
		if p, ok := index[name]; ok {
			first = min(first, p)
		}
	}
	parts := strings.Split(key, "/")
	for i, part := range parts {
		for n := i + 1; n <= min(i+maxNameParts, len(parts)); n++ {
			look(strings.Join(parts[i:n], "/"))
		}
		eachStem(part, look)
		for pattern, p := range wild {
			if ok, _ := path.Match(pattern, part); ok {
				first = min(first, p)
			}
		}
	}
	if first == len(protections) {
		return nil
	}
	return &protections[first]
}

// eachStem calls do with each pattern "stem.*" or "*.stem" that matches name and whose stem has at most stemDots dots.
func eachStem(name string, do func(string)) {
	for at, dots := 0, 0; dots <= stemDots; dots++ {
		n := strings.IndexByte(name[at:], '.')
		if n < 0 {
			break
		}
		do(name[:at+n] + ".*")
		at += n + 1
	}
	for end, dots := len(name), 0; dots <= stemDots; dots++ {
		n := strings.LastIndexByte(name[:end], '.')
		if n < 0 {
			break
		}
		do("*" + name[n:])
		end = n
	}
}

// checkPath calls add with each finding about the path name: that it is protected, belongs to git or is excluded by the rules.
func (r *Rules) checkPath(name string, add func(verdict, format string, args ...any)) {
	if !fsat.ValidPath(name) {
		add(caisson.VerdictDeny, "%.200q is no path in the directory", name)
		return
	}
	if slices.ContainsFunc(strings.Split(name, "/"), GitName) {
		add(caisson.VerdictDeny, "what belongs to git is changed by git only")
		return
	}
	key := pathKey(name)
	if p := protectionOf(key); p != nil && (p.neverAllowed || !matchAny(r.Allow, name)) {
		add(p.verdict, "%s", p.reason)
	}
	if len(r.Only) > 0 && !matchAny(r.Only, name) {
		add(caisson.VerdictDeny, "the rules let only other paths be changed")
	}
	if i := slices.IndexFunc(r.Deny, func(p string) bool { return MatchPath(p, name) || MatchPath(pathKey(p), key) }); i >= 0 {
		add(caisson.VerdictDeny, "the rules deny %.80q", r.Deny[i])
	}
}
