package forge

import (
	"net/url"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
)

func TestLocate(t *testing.T) {
	const none, hub, lab, tea = caisson.ForgeNone, caisson.ForgeGitHub, caisson.ForgeGitLab, caisson.ForgeGitea
	tests := []struct {
		url   string
		forge caisson.Forge
		api   string
		want  Server
	}{
		{"https://github.com/a/b.git", "", "", Server{Forge: hub, API: "https://api.github.com", Project: "a/b", Web: "https://github.com/a/b"}},
		{"https://GITHUB.com/a/b/", "", "", Server{Forge: hub, API: "https://api.github.com", Project: "a/b", Web: "https://github.com/a/b"}},
		{"git@github.com:a/b.c", "", "", Server{Forge: hub, API: "https://api.github.com", Project: "a/b.c", Web: "https://github.com/a/b.c"}},
		{"ssh://git@ssh.github.com:443/a/b.git", "", "", Server{Forge: hub, API: "https://api.github.com", Project: "a/b", Web: "https://github.com/a/b"}},
		{"https://acme.ghe.com/a/b", "", "", Server{Forge: hub, API: "https://api.acme.ghe.com", Project: "a/b", Web: "https://acme.ghe.com/a/b"}},
		{"https://git.corp:8443/a/b", hub, "", Server{Forge: hub, API: "https://git.corp:8443/api/v3", Project: "a/b", Web: "https://git.corp:8443/a/b"}},
		{"https://gitlab.com/g/s/t/p.git", "", "", Server{Forge: lab, API: "https://gitlab.com/api/v4", Project: "g/s/t/p", Web: "https://gitlab.com/g/s/t/p"}},
		{"git@altssh.gitlab.com:g/p", "", "", Server{Forge: lab, API: "https://gitlab.com/api/v4", Project: "g/p", Web: "https://gitlab.com/g/p"}},
		{"https://corp/gitlab/g/p", lab, "https://corp/gitlab/api/v4/", Server{Forge: lab, API: "https://corp/gitlab/api/v4", Project: "g/p", Web: "https://corp/gitlab/g/p"}},
		{"ssh://git@codeberg.org/a/b", "", "", Server{Forge: tea, API: "https://codeberg.org/api/v1", Project: "a/b", Web: "https://codeberg.org/a/b"}},
		{"ssh://git@git.corp:2222/a/b", tea, "", Server{Forge: tea, API: "https://git.corp/api/v1", Project: "a/b", Web: "https://git.corp/a/b"}},
		{"http://127.0.0.1:3000/a/b", tea, "", Server{Forge: tea, API: "http://127.0.0.1:3000/api/v1", Project: "a/b", Web: "http://127.0.0.1:3000/a/b"}},
		{"http://[::1]:3000/a/b", tea, "", Server{Forge: tea, API: "http://[::1]:3000/api/v1", Project: "a/b", Web: "http://[::1]:3000/a/b"}},
		{"git@corp:a/b", tea, "https://pages.corp/api/v1", Server{Forge: tea, API: "https://pages.corp/api/v1", Project: "a/b", Web: "https://corp/a/b"}},
		{"https://github.com/a/b", none, "", Server{Forge: none}},
		{"https://bitbucket.org/a/b", "", "", Server{Forge: none}},
		{"https://notgithub.com/a/b", "", "", Server{Forge: none}},
		{"https://github.com.evil.org/a/b", "", "", Server{Forge: none}},
		{"/srv/a/b.git", "", "", Server{Forge: none}},
	}
	for _, tt := range tests {
		got, err := Locate(tt.url, tt.forge, tt.api)
		if err != nil || got.Forge != tt.want.Forge || got.API != tt.want.API || got.Project != tt.want.Project || got.Web != tt.want.Web {
			t.Errorf("%s: %+v, %v", tt.url, got, err)
		}
	}
}

func TestLocateRefuses(t *testing.T) {
	for _, tt := range []struct {
		url   string
		forge caisson.Forge
		api   string
		field string
	}{
		{"nonsense", "", "", "url"},
		{"https://github.com/a", "", "", "url"},
		{"https://github.com/a/b/c", "", "", "url"},
		{"https://github.com/a/.git", "", "", "url"},
		{"https://github.com/a/...", "", "", "url"},
		{"https://github.com/a/-b", "", "", "url"},
		{"https://github.com/a/b%20c", "", "", "url"},
		{"https://github.com/a/b:c", "", "", "url"},
		{"https://gitlab.com/a" + strings.Repeat("/b", 30), "", "", "url"},
		{"https://gitlab.com/p", "", "", "url"},
		{"https://host/a/b", "", "https://host/api/v1", "forge"},
		{"https://host/a/b", "gerrit", "", "forge"},
		{"/srv/a/b", caisson.ForgeGitea, "", "forge"},
		{"https://host/a/b", caisson.ForgeGitea, "host/api", "api"},
		{"https://host/a/b", caisson.ForgeGitea, "ssh://git@host/api", "api"},
		{"https://host/a/b", caisson.ForgeGitea, "https://user@host/api", "api"},
		{"https://host/a/b", caisson.ForgeGitea, "https://host/api?x", "api"},
		{"https://host/a/b", caisson.ForgeGitea, "https://host/../api", "api"},
		{"https://host/a/b", caisson.ForgeGitea, "https://host/a%2fb", "api"},
		{"https://host/a/b", caisson.ForgeGitea, "https://", "api"},
		{"https://host/a/b", caisson.ForgeGitea, "file:///x", "api"},
	} {
		got, err := Locate(tt.url, tt.forge, tt.api)
		if caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) != tt.field || got.API+got.Project+got.Web != "" {
			t.Errorf("%s %s: %+v, %v", tt.url, tt.api, got, err)
		}
	}
}

func TestBranchURL(t *testing.T) {
	for _, tt := range []struct{ url, branch, want string }{
		{"https://github.com/a/b", "caisson/1", "https://github.com/a/b/tree/caisson/1"},
		{"https://gitlab.com/a/b", "caisson/1", "https://gitlab.com/a/b/-/tree/caisson/1"},
		{"https://codeberg.org/a/b", "x#y%z", "https://codeberg.org/a/b/src/branch/x%23y%25z"},
		{"https://example.org/a/b", "x", ""},
		{"https://github.com/a/b", "../x", ""},
		{"https://github.com/a/b", "a b", ""},
	} {
		s, err := Locate(tt.url, "", "")
		if got := BranchURL(s, tt.branch); err != nil || got != tt.want {
			t.Errorf("%s: %q, %v", tt.url, got, err)
		}
	}
}

func TestGitAuth(t *testing.T) {
	for _, tt := range []struct {
		forge                 caisson.Forge
		token, user, password string
	}{
		{caisson.ForgeGitHub, "t", "x-access-token", "t"}, {caisson.ForgeGitLab, "t", "oauth2", "t"}, {caisson.ForgeGitea, "t", "oauth2", "t"},
		{caisson.ForgeNone, "t", "x-token-auth", "t"}, {caisson.ForgeGitea, "ada:p:w", "ada", "p:w"}, {caisson.ForgeGitHub, "", "", ""},
	} {
		user, password := GitAuth(tt.forge, caisson.NewSecret(tt.token))
		if user != tt.user || password.Reveal() != tt.password {
			t.Errorf("%s %s: %s", tt.forge, tt.token, user)
		}
	}
}

func FuzzLocate(f *testing.F) {
	f.Add("https://github.com/a/b.git", "", "")
	f.Add("git@host:g/s/p", "gitlab", "https://host/gitlab/api/v4")
	f.Add("http://127.0.0.1:80/gitea/a/b", "gitea", "http://127.0.0.1/gitea/api/v1")
	f.Add("ssh://git@host:22/a/b", "github", "")
	f.Fuzz(func(t *testing.T, raw, kind, api string) {
		s, err := Locate(raw, caisson.Forge(kind), api)
		if err != nil {
			if caisson.KindOf(err) != caisson.Invalid || caisson.FieldOf(err) == "" || s.API != "" {
				t.Fatalf("%+v, %v", s, err)
			}
			return
		}
		if s.Forge == caisson.ForgeNone {
			return
		}
		for _, a := range []string{s.API, s.Web, BranchURL(s, "a/b"), s.pullURL(1)} {
			u, err := url.Parse(a)
			if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" || strings.Contains(u.Path, "..") && strings.Contains(u.Path, "/../") {
				t.Fatalf("%q leads to %q: %v", raw, a, err)
			}
		}
		if strings.ContainsAny(s.Project, " %?#\\@:") || strings.HasPrefix(s.Project, "/") || !strings.HasSuffix(s.Web, "/"+s.Project) {
			t.Fatalf("%q has the project %q", raw, s.Project)
		}
		s.Token = caisson.NewSecret("x")
		if err := s.check(); err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		if !s.trustsURL(s.pullURL(1)) {
			t.Fatalf("%q: %q is not believed", raw, s.pullURL(1))
		}
	})
}
