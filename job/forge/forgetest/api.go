package forgetest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/gitserver"
)

// A Pull is a pull request.
type Pull struct {
	Number      int64
	Title, Body string // Title has the prefix of a draft if the forge marks drafts by one
	Head, Base  string // names of branches
	HeadRepo    int64  // id of the repository that the head is in: this one, or a fork of it
	Draft       bool   // whether it is a draft
	State       string // open, closed or merged
	URL         string // URL of the pull request's page
}

// repoID and forkID are the ids of the repository and of a fork of it.
const repoID, forkID = 1000, 2000

// AddPull adds a pull request of another user, and returns its number. If fork is set, its head is in a fork, and need not exist.
func (f *Forge) AddPull(head, base, state string, fork bool) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.add(head, base, "somebody's", "", false)
	p.State = state
	if fork {
		p.HeadRepo = forkID
	}
	return p.Number
}

// add creates a pull request. The caller must hold f.mu.
func (f *Forge) add(head, base, title, body string, draft bool) *Pull {
	p := &Pull{Number: int64(len(f.pulls) + 1), Title: title, Body: body, Head: head, Base: base, HeadRepo: repoID, Draft: draft, State: "open"}
	kind := map[caisson.Forge]string{caisson.ForgeGitHub: "pull", caisson.ForgeGitLab: "-/merge_requests", caisson.ForgeGitea: "pulls"}[f.o.Kind]
	p.URL = fmt.Sprintf("%s/%s/%d", f.pageURL(), kind, p.Number)
	f.pulls = append(f.pulls, p)
	return p
}

// open returns the open pull request of two branches of this repository, or nil. The caller must hold f.mu.
func (f *Forge) open(head, base string) *Pull {
	for _, p := range f.pulls {
		if p.State == "open" && p.Head == head && p.Base == base && p.HeadRepo == repoID {
			return p
		}
	}
	return nil
}

// byNumber returns the pull request with that number, or nil. The caller must hold f.mu.
func (f *Forge) byNumber(s string) *Pull {
	for _, p := range f.pulls {
		if strconv.FormatInt(p.Number, 10) == s {
			return p
		}
	}
	return nil
}

// list returns a page of the pull requests for which keep returns true, from new to old, and sets the pagination headers. per is
// the query parameter with the page size, which is at most most. The caller must hold f.mu.
func (f *Forge) list(w http.ResponseWriter, r *http.Request, per string, most int, keep func(*Pull) bool) []*Pull {
	var all []*Pull
	for i := len(f.pulls) - 1; i >= 0; i-- {
		if keep(f.pulls[i]) {
			all = append(all, f.pulls[i])
		}
	}
	number := func(name string, or int) int {
		if n, err := strconv.Atoi(r.URL.Query().Get(name)); err == nil && n > 0 {
			return n
		}
		return or
	}
	size, page := min(number(per, 30), most), number("page", 1)
	from, to := min((page-1)*size, len(all)), min(page*size, len(all))
	if to < len(all) {
		next := *r.URL
		q := next.Query()
		q.Set("page", strconv.Itoa(page+1))
		next.RawQuery = q.Encode()
		w.Header().Set("Link", fmt.Sprintf(`<%s%s>; rel="next"`, f.srv.URL, next.RequestURI()))
		w.Header().Set("X-Next-Page", strconv.Itoa(page+1))
	}
	w.Header().Set("X-Total-Count", strconv.Itoa(len(all)))
	w.Header().Set("X-Total", strconv.Itoa(len(all)))
	return all[from:to]
}

// hasBranch reports whether the branch exists.
func (f *Forge) hasBranch(branch string) bool {
	_, err := gitserver.TryGit(f.t, f.Dir, "rev-parse", "--verify", "--quiet", "--end-of-options", "refs/heads/"+branch)
	return err == nil && branch != ""
}

// ahead reports whether head has commits that base lacks.
func (f *Forge) ahead(head, base string) bool {
	out, err := gitserver.TryGit(f.t, f.Dir, "rev-list", "-n", "1", "refs/heads/"+base+"..refs/heads/"+head)
	return err == nil && strings.TrimSpace(out) != ""
}

// tip returns the commit of a branch, or "" if it does not exist.
func (f *Forge) tip(branch string) string {
	out, _ := gitserver.TryGit(f.t, f.Dir, "rev-parse", "--verify", "--quiet", "--end-of-options", "refs/heads/"+branch)
	return strings.TrimSpace(out)
}

// serveAPI answers a call of the REST API. It answers with an error as long as Options.FailPulls or RateLimitPulls is not zero.
func (f *Forge) serveAPI(w http.ResponseWriter, r *http.Request, user, token string) {
	f.mu.Lock()
	fail, limit := f.o.FailPulls > 0, f.o.RateLimitPulls > 0
	switch {
	case fail:
		f.o.FailPulls--
	case limit:
		f.o.RateLimitPulls--
	}
	kind := f.o.Kind
	f.mu.Unlock()
	switch {
	case fail:
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, "<html><body>unicorns</body></html>")
	case limit && kind == caisson.ForgeGitHub:
		w.Header().Set("Retry-After", "1")
		w.Header().Set("X-RateLimit-Remaining", "0")
		w.Header().Set("X-RateLimit-Reset", strconv.FormatInt(time.Now().Add(time.Second).Unix(), 10))
		reply(w, http.StatusForbidden, object{"message": "API rate limit exceeded for user ID 1.", "documentation_url": "https://docs.github.com/rest"})
	case limit:
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		io.WriteString(w, "Retry later\n")
	case kind == caisson.ForgeGitLab:
		gitLabAPI{f}.serve(w, r, user, token)
	case kind == caisson.ForgeGitea:
		giteaAPI{f}.serve(w, r, user, token)
	default:
		gitHubAPI{f}.serve(w, r, user, token)
	}
}

// replyCreated answers that a pull request was created. If Options.LosePullAnswers is not zero, it drops the connection instead.
func (f *Forge) replyCreated(w http.ResponseWriter, body object) {
	f.mu.Lock()
	lose := f.o.LosePullAnswers > 0
	if lose {
		f.o.LosePullAnswers--
	}
	f.mu.Unlock()
	if lose {
		panic(http.ErrAbortHandler)
	}
	reply(w, http.StatusCreated, body)
}

// object is a JSON object of an answer.
type object = map[string]any

// reply answers with a status and a JSON body.
func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		panic(err)
	}
}

// input decodes the request's JSON; it returns false if the request has none.
func input(r *http.Request, v any) bool {
	return strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") && json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(v) == nil
}

// toObjects converts pulls to JSON objects with show.
func toObjects(pulls []*Pull, show func(*Pull) object) []object {
	out := []object{}
	for _, p := range pulls {
		out = append(out, show(p))
	}
	return out
}
