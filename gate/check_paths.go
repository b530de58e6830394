package gate

import (
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-dev/caisson"
)

// A protection is a list of paths with the verdict on changes there and below.
type protection struct {
	verdict string
	why     string
	final   bool // no rule allows it
	// names are in lower case and match any case, in any directory: what is checked may be a home directory, or hold several
	// repositories. They have at most protectedNames parts; those of one part may have wildcards.
	names []string
}

const protectedNames = 3

// protections are what runs, or is followed, without somebody deciding to do so. Of those that match, the first one counts.
var protections = []protection{
	{caisson.VerdictDeny, "keys and trust of the host's user are never changed", true, []string{
		".ssh", ".gnupg", ".aws", ".kube", ".docker/config.json", ".netrc", ".git-credentials", ".config/gcloud", ".config/gh",
		".password-store",
	}},
	{caisson.VerdictDeny, "hooks run by themselves; allow the path in the rules if that is wanted", false, []string{
		".husky", ".githooks", ".git-hooks", ".hooks", ".lefthook", "lefthook.yml", "lefthook.yaml", ".lefthook.yml", ".lefthook.yaml",
		"lefthook-local.yml", ".pre-commit-config.yaml", ".pre-commit-config.yml", ".pre-commit-hooks.yaml", ".overcommit.yml", ".hg",
		".svn", ".bzr", ".jj",
	}},
	{caisson.VerdictDeny, "continuous integration runs this with its secrets; allow the path in the rules if that is wanted", false, []string{
		".github/workflows", ".github/actions", ".forgejo", ".gitea", ".gitlab-ci.yml", ".gitlab-ci.yaml", ".gitlab/ci", ".circleci",
		"jenkinsfile", "jenkinsfile.*", "*.jenkinsfile", ".travis.yml", ".drone.yml", ".drone.yaml", ".drone.star", ".woodpecker",
		".woodpecker.yml", ".woodpecker.yaml", ".buildkite", "azure-pipelines.yml", "azure-pipelines.yaml", ".azure-pipelines",
		"bitbucket-pipelines.yml", "appveyor.yml", ".appveyor.yml", ".cirrus.yml", ".cirrus.star", ".semaphore", ".teamcity", ".tekton",
		"cloudbuild.yaml", "cloudbuild.yml", "buildspec.yml", "buildspec.yaml", "wercker.yml", ".builds", ".build.yml", ".ci",
		"action.yml", "action.yaml", ".github/dependabot.yml", "renovate.json", ".renovaterc*",
	}},
	{caisson.VerdictAsk, "editors may run this when they open the directory", false, []string{
		".vscode", ".idea", ".fleet", ".zed", ".nova", ".vs", "*.code-workspace", "*.sublime-project", ".exrc", ".vimrc", ".gvimrc", ".nvimrc",
		".nvim.lua", ".lvimrc", "_vimrc", ".dir-locals.el", ".dir-locals-2.el", ".emacs", ".emacs.d", ".devcontainer", ".devcontainer.json",
		"*.desktop", ".directory", "desktop.ini", "autorun.inf", "*.lnk", "*.url", "*.webloc",
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
		"pip.conf", ".config/pip", ".pypirc", "launchagents", ".crontab", ".forward", ".procmailrc",
	}},
}

// protectedPaths is an index of protections by name, and the names with wildcards.
var protectedPaths = sync.OnceValues(func() (index map[string]int, wild map[string]int) {
	index, wild = map[string]int{}, map[string]int{}
	for i, p := range protections {
		for _, name := range p.names {
			if strings.ContainsAny(name, "*?[") {
				wild[name] = i
			} else {
				index[name] = i
			}
		}
	}
	return index, wild
})

// protectionOf returns the strictest protection of a path, by its key, or nil.
func protectionOf(key string) *protection {
	index, wild := protectedPaths()
	first := len(protections)
	parts := strings.Split(key, "/")
	for i, part := range parts {
		for n := i + 1; n <= min(i+protectedNames, len(parts)); n++ {
			if p, ok := index[strings.Join(parts[i:n], "/")]; ok {
				first = min(first, p)
			}
		}
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

// checkPath says whether a path may be changed at all.
func (r *Rules) checkPath(name string, add func(verdict, format string, args ...any)) {
	if !validPath(name) {
		add(caisson.VerdictDeny, "%.200q is no path in the directory", name)
		return
	}
	if slices.ContainsFunc(strings.Split(name, "/"), gitName) {
		add(caisson.VerdictDeny, "what belongs to git is changed by git only")
		return
	}
	key := pathKey(name)
	if p := protectionOf(key); p != nil && (p.final || !matchAny(r.Allow, name)) {
		add(p.verdict, "%s", p.why)
	}
	if len(r.Only) > 0 && !matchAny(r.Only, name) {
		add(caisson.VerdictDeny, "the rules let only other paths be changed")
	}
	if i := slices.IndexFunc(r.Deny, func(p string) bool { return MatchPath(p, name) || MatchPath(pathKey(p), key) }); i >= 0 {
		add(caisson.VerdictDeny, "the rules deny %.80q", r.Deny[i])
	}
}
