package baseline

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/job/gate/gatetest"
)

// suspects returns a list in the form that the tests compare.
func suspects(s Suspects) string {
	var b strings.Builder
	for _, one := range s.List {
		fmt.Fprintf(&b, "%s: %s\n", one.Path, one.Why)
	}
	return b.String()
}

// TestSuspects checks that files that may contain a secret and are not hidden are reported, by name from the scan and by
// content from the search.
func TestSuspects(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := "-----BEGIN OPENSSH PRIVATE KEY-----\n" + strings.Repeat(gatetest.Sample(64, gatetest.Alnum)+"\n", 5) + "-----END OPENSSH PRIVATE KEY-----\n"
	const config = "[remote \"origin\"]\n\turl = https://%s/acme/web\n"
	for name, content := range map[string]string{
		".env": "KEY=hunter2", ".env~": "KEY=hunter2", ".git/credentials": "x", "rclone.conf": "x", // hidden
		"infra/prod.tfstate": "{}", "infra/prod.tfvars": "x", "gcp-key.json": "{}", "auth.json": "{}", "id_work": "x", "id_work.pub": "x",
		".npmrc.bak": "x", "server.key.old": "x", "a.txt.bak": "x", "main.go": "package main\n",
		".git/config": fmt.Sprintf(config, "me:hunter2@example.com"), "other/.git/config": fmt.Sprintf(config, "example.com"),
		".git/modules/lib/config": fmt.Sprintf(config, gatetest.Sample(40, gatetest.Alnum)+"@example.com"), ".git/objects/key": key,
		"deploy": key, "notes.md": "one\ntoken: " + gatetest.GithubToken() + "\n", "aws.txt": "AKIA" + gatetest.Sample(16, gatetest.Upper),
		"node_modules/p/key": key, "large": key + strings.Repeat("x\n", 200<<10), "binary": key + "\x00",
		"words.txt": "password = " + gatetest.Sample(20, gatetest.Alnum),
	} {
		gatetest.Write(t, dir+"/"+name, content)
	}
	gatetest.Must(t, os.Link(dir+"/.env", dir+"/settings"))
	gatetest.Must(t, os.Symlink("/etc/shadow", dir+"/link"))
	gatetest.Must(t, gatetest.Mkfifo(dir+"/fifo"))
	result, m := scanned(t, dir, DefaultHidden())
	if result.HiddenCount != 4 {
		t.Errorf("hidden are %q", result.Hidden)
	}
	byName := suspects(result.Suspects)
	for _, want := range []string{"infra/prod.tfstate", "infra/prod.tfvars", "gcp-key.json", "auth.json", "id_work", ".npmrc.bak", "server.key.old"} {
		if !strings.Contains(byName, want+": ") {
			t.Errorf("%s is not reported by its name", want)
		}
	}
	if result.Suspects.Count != 7 {
		t.Errorf("by name:\n%s", byName)
	}
	search := func(l SearchLimits) SearchResult {
		t.Helper()
		found, err := Search(t.Context(), gatetest.OpenDir(t, dir), m.file.(*os.File), l)
		gatetest.Must(t, err)
		return found
	}
	found := search(SearchLimits{})
	byContent := suspects(found.Suspects)
	for _, want := range []string{
		"settings: a hard link of the hidden file .env", ".git/config: the address", ".git/modules/lib/config: the address", "deploy: line 1 looks like a secret: private-key",
		"notes.md: line 2 looks like a secret: github-pat", "aws.txt: line 1 looks like a secret: aws-access-token",
	} {
		if !strings.Contains(byContent, want) {
			t.Errorf("%s is not reported by its content", want)
		}
	}
	// In .git or node_modules: 2. Too large: 1.
	if found.Count != 6 || found.Searched != 11 || found.Unsearched != 3 {
		t.Errorf("%d files were searched, %d not, and by content:\n%s", found.Searched, found.Unsearched, byContent)
	}

	// Each limit excludes files and reports it. Configurations of git come first.
	for name, l := range map[string]SearchLimits{"files": {Files: 3}, "bytes": {Bytes: 300}} {
		if found := search(l); found.Searched+found.Unsearched != 14 || found.Searched > 9 || !strings.Contains(suspects(found.Suspects), ".git/config: ") {
			t.Errorf("few %s: %+v", name, found)
		}
	}
	if found := search(SearchLimits{Time: time.Nanosecond}); found.Searched != 0 || found.Unsearched != 14 {
		t.Errorf("no time: %+v", found)
	}
	// A path whose type has changed since the scan is not opened.
	gatetest.Must(t, os.Remove(dir+"/deploy"))
	gatetest.Must(t, unix.Mkfifo(dir+"/deploy", 0o644))
	if found := search(SearchLimits{}); found.Searched != 10 {
		t.Errorf("a pipe in the place of a file: %+v", found)
	}
}
