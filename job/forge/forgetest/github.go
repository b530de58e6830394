package forgetest

import (
	"net/http"
	"strings"
)

// gitHubAPI is the API of GitHub, version 2022-11-28, below /api/v3 as on GitHub Enterprise.
type gitHubAPI struct{ *Forge }

// serve answers a call of the API.
func (f gitHubAPI) serve(w http.ResponseWriter, r *http.Request, user, token string) {
	path := strings.TrimPrefix(r.URL.Path, "/api/v3")
	if f.serveApp(w, r, path, user, token) {
		return
	}
	if user != "Bearer" && user != "token" || !f.validToken(token) {
		reply(w, http.StatusUnauthorized, object{"message": "Bad credentials", "documentation_url": "https://docs.github.com/rest", "status": "401"})
		return
	}
	base := "/repos/" + f.project() + "/pulls"
	number, one := strings.CutPrefix(path, base+"/")
	switch {
	case path == base && r.Method == http.MethodGet:
		f.listPulls(w, r)
	case path == base && r.Method == http.MethodPost:
		f.createPull(w, r)
	case one && r.Method == http.MethodPatch:
		f.updatePull(w, r, number)
	default:
		reply(w, http.StatusNotFound, object{"message": "Not Found", "documentation_url": "https://docs.github.com/rest", "status": "404"})
	}
}

// showPull returns a pull request as the API shows it.
func (f gitHubAPI) showPull(p *Pull) object {
	state, merged := p.State, any(nil)
	if state == "merged" {
		state, merged = "closed", "2026-01-01T00:00:00Z"
	}
	ref := func(branch string, repo int64) object {
		return object{"ref": branch, "label": f.o.Owner + ":" + branch, "sha": f.tip(branch), "repo": object{"id": repo, "full_name": f.project()}}
	}
	return object{
		"id": 5_000_000_000 + p.Number, "number": p.Number, "url": f.API + "/repos/" + f.project() + "/pulls", "html_url": p.URL, "state": state, "title": p.Title,
		"body": p.Body, "draft": p.Draft, "merged_at": merged, "locked": false, "user": object{"login": "bot", "id": 1},
		"head": ref(p.Head, p.HeadRepo), "base": ref(p.Base, repoID),
	}
}

// listPulls answers with a page of the list of pull requests.
func (f gitHubAPI) listPulls(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f.mu.Lock()
	defer f.mu.Unlock()
	// A query parameter head that is not owner:branch is ignored.
	owner, head, filter := strings.Cut(q.Get("head"), ":")
	pulls := f.list(w, r, "per_page", 100, func(p *Pull) bool {
		switch {
		case q.Get("state") != "all" && (p.State == "open") != (q.Get("state") != "closed"):
			return false
		case q.Get("base") != "" && p.Base != q.Get("base"):
			return false
		}
		return !filter || p.Head == head && (owner == f.o.Owner) == (p.HeadRepo == repoID)
	})
	reply(w, http.StatusOK, toObjects(pulls, f.showPull))
}

// gitHubInvalid answers that a request was refused because of errors in its fields.
func gitHubInvalid(w http.ResponseWriter, errors ...object) {
	reply(w, http.StatusUnprocessableEntity, object{
		"message": "Validation Failed", "errors": errors, "documentation_url": "https://docs.github.com/rest/pulls/pulls#create-a-pull-request", "status": "422",
	})
}

// createPull creates the pull request that r describes.
func (f gitHubAPI) createPull(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Title, Body, Head, Base string
		Draft                   bool
	}
	if !input(r, &in) {
		reply(w, http.StatusBadRequest, object{"message": "Problems parsing JSON"})
		return
	}
	in.Head = strings.TrimPrefix(in.Head, f.o.Owner+":")
	custom := func(message string) object {
		return object{"resource": "PullRequest", "code": "custom", "message": message}
	}
	head, base := f.hasBranch(in.Head), f.hasBranch(in.Base)
	ahead := head && base && f.ahead(in.Head, in.Base)
	f.mu.Lock()
	var refused []object
	switch {
	case in.Title == "":
		refused = append(refused, object{"resource": "PullRequest", "code": "missing_field", "field": "title"})
	case !head:
		refused = append(refused, object{"resource": "PullRequest", "field": "head", "code": "invalid"})
	case !base:
		refused = append(refused, object{"resource": "PullRequest", "field": "base", "code": "invalid"})
	case !ahead:
		refused = append(refused, custom("No commits between "+in.Base+" and "+in.Head))
	case f.open(in.Head, in.Base) != nil:
		refused = append(refused, custom("A pull request already exists for "+f.o.Owner+":"+in.Head+"."))
	}
	noDrafts := f.o.NoDrafts && in.Draft
	var made object
	if refused == nil && !noDrafts {
		made = f.showPull(f.add(in.Head, in.Base, in.Title, in.Body, in.Draft))
	}
	f.mu.Unlock()
	switch {
	case refused != nil:
		gitHubInvalid(w, refused...)
	case noDrafts:
		reply(w, http.StatusUnprocessableEntity, object{"message": "Draft pull requests are not supported in this repository.", "documentation_url": "https://docs.github.com/rest", "status": "422"})
	default:
		f.replyCreated(w, made)
	}
}

// updatePull changes the pull request with the given number as r specifies.
func (f gitHubAPI) updatePull(w http.ResponseWriter, r *http.Request, number string) {
	var in struct{ Title, Body *string }
	if !input(r, &in) {
		reply(w, http.StatusBadRequest, object{"message": "Problems parsing JSON"})
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.byNumber(number)
	if p == nil {
		reply(w, http.StatusNotFound, object{"message": "Not Found"})
		return
	}
	setIfGiven(&p.Title, in.Title)
	setIfGiven(&p.Body, in.Body)
	reply(w, http.StatusOK, f.showPull(p))
}

// setIfGiven assigns *from to *to, unless from is nil.
func setIfGiven(to, from *string) {
	if from != nil {
		*to = *from
	}
}
