package test_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/poll"
)

// service returns a service of a sandbox when it is as wanted.
func (h *host) service(sandbox, id string, as func(caisson.ServiceStatus) bool) (s caisson.ServiceStatus) {
	h.t.Helper()
	defer func() {
		if h.t.Failed() {
			h.t.Logf("service %s of %s: %+v", id, sandbox, s)
		}
	}()
	poll.Until(h.t, settle, func() bool {
		list := shows[[]caisson.ServiceStatus](h, "service", "ls", sandbox)
		i := slices.IndexFunc(list, func(s caisson.ServiceStatus) bool { return s.ID == id })
		if i < 0 {
			return false
		}
		s = list[i]
		return as(s)
	})
	return s
}

func isReady(s caisson.ServiceStatus) bool { return s.State == caisson.ServiceReady }

// TestServices follows the services of docs/guides/services.md through crashes, pauses, forks, restarts and the death of the daemon.
func TestServices(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	page, err := os.ReadFile("../docs/guides/services.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	template, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("the page has no template")
	}
	d := h.serve()
	h.ok("template", "put", h.write("site.yaml", template))
	h.ok("sandbox", "create", "site", "--name", "dev")
	web := h.service("dev", "web", isReady)
	// count returns the number of the service's processes.
	count := func(sandbox string) string {
		return strings.TrimSpace(h.sh(sandbox, `n=0; for p in /proc/[0-9]*/cmdline; do tr '\0' ' ' < $p 2>/dev/null | grep -q '^python3 -m http.server' && n=$((n+1)); done; echo $n`))
	}
	same := func(sandbox, after string) {
		t.Helper()
		if s := h.service(sandbox, "web", isReady); s.PID != web.PID || s.Restarts != web.Restarts || !s.Since.Equal(web.Since) {
			t.Errorf("%s web is %+v, not %+v", after, s, web)
		}
		if n := count(sandbox); n != "1" {
			t.Errorf("%s there are %s processes of web", after, n)
		}
	}
	same("dev", "at first")

	// A crash loop is visible, and backed off.
	h.ok("service", "apply", "dev", "--id", "bad", "--port", "1", "--", "sh", "-c", "echo trying; exit 3")
	bad := h.service("dev", "bad", func(s caisson.ServiceStatus) bool { return s.State == caisson.ServiceBackoff && s.Failures >= 3 })
	if bad.Exit == nil || bad.Exit.Code != 3 || bad.RetryAt.IsZero() {
		t.Errorf("in its loop: %+v", bad)
	}
	if log := h.ok("service", "logs", "dev", "bad"); strings.Count(log, "trying") < 3 {
		t.Errorf("its log is %q", log)
	}
	// template.put, sandbox.running, services.set, and these
	if list := h.ok("events", "--after", "0", "-n", "5"); !strings.Contains(list, "service.ready") || !strings.Contains(list, "service.failed") {
		t.Errorf("events: %s", list)
	}
	h.ok("service", "rm", "dev", "bad")
	h.fails(3, "no service", "service", "logs", "dev", "bad")
	// A service whose port another process has is not ready, although the port answers.
	h.ok("service", "apply", "dev", "--id", "second", "--port", strconv.Itoa(web.Port), "--restart", "never", "--", "sleep", "1000")
	if s := h.service("dev", "second", func(s caisson.ServiceStatus) bool { return s.State == caisson.ServiceFailed }); !strings.Contains(s.Message, "in use") {
		t.Errorf("with a port that is in use: %+v", s)
	}
	h.ok("service", "rm", "dev", "second")
	same("dev", "after changes of another service")

	// It is a process of the sandbox.
	h.ok("sandbox", "pause", "dev")
	h.service("dev", "web", func(s caisson.ServiceStatus) bool { return s.State == caisson.ServiceStopped })
	h.ok("sandbox", "resume", "dev")
	same("dev", "after a resume")
	h.ok("sandbox", "fork", "--name", "copy", "dev")
	same("copy", "in a fork")
	same("dev", "after a fork")
	h.ok("sandbox", "suspend", "dev")
	d.kill()
	d = h.serve()
	h.waitState("dev", caisson.Suspended)
	h.ok("sandbox", "wake", "dev")
	same("dev", "after the daemon was killed")
	same("copy", "after the daemon was killed")

	// Another supervisor takes over from one that was killed.
	h.sh("copy", `for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline 2>/dev/null | grep -q 'supervise $' && kill -9 ${p#/proc/}; done; true`)
	h.service("copy", "web", func(s caisson.ServiceStatus) bool { return isReady(s) && s.PID != web.PID })
	if n := count("copy"); n != "1" {
		t.Errorf("with another supervisor there are %s processes of web", n)
	}

	h.ok("sandbox", "stop", "dev")
	h.ok("sandbox", "start", "dev")
	if s := h.service("dev", "web", isReady); s.Since.Equal(web.Since) || s.Restarts != 0 {
		t.Errorf("after stop and start: %+v", s)
	}
	d.end()
}

// TestAgentService follows the service of an agent, beside one of its template, from a warm snapshot through the lives of a session.
func TestAgentService(t *testing.T) {
	t.Parallel()
	h := withCaller(newHost(t))
	h.ok("template", "put", h.write("site.yaml", "name: site\nimage: host\nservices: [{id: other, command: [/bin/sleep, '3000']}]\n"))
	h.agentsDir(map[string]string{"served": "template: site\ndriver: exec\ncommand: [/bin/sh, -c, '{prompt}']\nmemory: true\nmodels: ['-']\n" +
		"service: [/bin/sh, -c, 'echo on; echo x >> /root/starts; exec sleep 3000']\nserviceDir: /opt\nwarm: {prompt: echo warm, randomness: openssl}\n"})
	h.ok("agent", "warm", "served")
	starts := func(after, want string) (box string) {
		t.Helper()
		r := h.succeeds("--session", "s", "served", "cat /root/starts | tr -d '\\n'")
		if r.Result.Answer != want {
			t.Errorf("%s there were the starts %q, want %q", after, r.Result.Answer, want)
		}
		return string(r.Result.Sandbox)
	}
	box := starts("in a fork", "x")
	h.ok("sandbox", "wake", box)
	first := h.service(box, "agent", isReady)
	if s := h.service(box, "other", isReady); first.Restart != caisson.RestartNever || first.Cwd != "/opt" || s.PID == first.PID {
		t.Errorf("the services are %+v and %+v", first, s)
	}
	if log := h.ok("service", "logs", box, "agent"); log != "on" {
		t.Errorf("its log is %q", log)
	}
	h.fails(2, "is the id of the service of an agent", "service", "apply", box, "--id", "agent", "--", "sleep", "1")
	h.ok("sandbox", "pause", box)
	starts("after a pause", "x")
	h.ok("sandbox", "wake", box)
	if s := h.service(box, "agent", isReady); s.PID != first.PID || !s.Since.Equal(first.Since) {
		t.Errorf("after a pause it is %+v, not %+v", s, first)
	}
	h.ok("sandbox", "stop", box)
	starts("after a stop", "xx")
	h.ok("sandbox", "stop", box)
	h.ok("sandbox", "start", box)
	h.service(box, "agent", isReady)
	starts("after a start", "xxx")
}
