package forgetest

import (
	"fmt"
	"net/http"
	"strings"
)

// giteaAPI is the API of Gitea and Forgejo, version 1.
type giteaAPI struct{ *Forge }

// serve answers a call of the API.
func (f giteaAPI) serve(w http.ResponseWriter, r *http.Request, user, token string) {
	if user == "" || !f.validToken(token) {
		reply(w, http.StatusUnauthorized, object{"message": "invalid username, password or token", "url": f.API + "/swagger"})
		return
	}
	path := strings.TrimPrefix(r.URL.Path, "/api/v1")
	base := "/repos/" + f.project() + "/pulls"
	rest, below := strings.CutPrefix(path, base+"/")
	from, to, pair := strings.Cut(rest, "/")
	switch {
	case path == base && r.Method == http.MethodGet:
		f.listPulls(w, r)
	case path == base && r.Method == http.MethodPost:
		f.createPull(w, r)
	case below && pair && r.Method == http.MethodGet:
		f.between(w, from, to)
	case below && !pair && r.Method == http.MethodPatch:
		f.updatePull(w, r, rest)
	default:
		f.notFound(w)
	}
}

// notFound answers with the status 404.
func (f giteaAPI) notFound(w http.ResponseWriter) {
	reply(w, http.StatusNotFound, object{"message": "The target couldn't be found.", "url": f.API + "/swagger", "errors": []string{}})
}

// giteaDraft reports whether Gitea treats a pull request with this title as a draft.
func giteaDraft(title string) bool {
	t := strings.ToUpper(title)
	return strings.HasPrefix(t, "WIP:") || strings.HasPrefix(t, "[WIP]")
}

// showPull returns a pull request as the API shows it.
func (f giteaAPI) showPull(p *Pull) object {
	state := p.State
	if state == "merged" {
		state = "closed"
	}
	ref := func(branch string, repo int64) object {
		return object{"label": branch, "ref": branch, "sha": f.tip(branch), "repo_id": repo, "repo": object{"id": repo, "full_name": f.project()}}
	}
	return object{
		"id": 700 + p.Number, "number": p.Number, "url": p.URL, "html_url": p.URL, "title": p.Title, "body": p.Body, "state": state,
		"merged": p.State == "merged", "draft": giteaDraft(p.Title), "user": object{"id": 1, "login": "bot"},
		"head": ref(p.Head, p.HeadRepo), "base": ref(p.Base, repoID),
	}
}

// listPulls answers with a page of the list of pull requests.
func (f giteaAPI) listPulls(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	state := r.URL.Query().Get("state")
	pulls := f.list(w, r, "limit", 50, func(p *Pull) bool {
		return state == "all" || (p.State == "open") == (state != "closed")
	})
	reply(w, http.StatusOK, toObjects(pulls, f.showPull))
}

// between answers with the first pull request between two branches, open or not.
func (f giteaAPI) between(w http.ResponseWriter, base, head string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pulls {
		if p.Base == base && p.Head == head && p.HeadRepo == repoID {
			reply(w, http.StatusOK, f.showPull(p))
			return
		}
	}
	f.notFound(w)
}

// createPull creates the pull request that r describes.
func (f giteaAPI) createPull(w http.ResponseWriter, r *http.Request) {
	var in struct{ Title, Body, Head, Base string }
	if !input(r, &in) {
		reply(w, http.StatusUnprocessableEntity, object{"message": "[]: invalid JSON", "url": f.API + "/swagger"})
		return
	}
	in.Head = strings.TrimPrefix(in.Head, f.o.Owner+":")
	if !f.hasBranch(in.Head) || !f.hasBranch(in.Base) {
		f.notFound(w)
		return
	}
	f.mu.Lock()
	have := f.open(in.Head, in.Base)
	var made object
	if have == nil && in.Title != "" && in.Head != in.Base {
		made = f.showPull(f.add(in.Head, in.Base, in.Title, in.Body, giteaDraft(in.Title)))
	}
	f.mu.Unlock()
	switch {
	case in.Head == in.Base:
		reply(w, http.StatusUnprocessableEntity, object{"message": "Invalid PullRequest: There are no changes between the head and the base", "url": f.API + "/swagger"})
	case have != nil:
		reply(w, http.StatusConflict, object{"message": fmt.Sprintf(
			"pull request already exists for these targets [id: %d, issue_id: %d, head_repo_id: %d, base_repo_id: %d, head_branch: %s, base_branch: %s]",
			700+have.Number, 800+have.Number, repoID, repoID, in.Head, in.Base), "url": f.API + "/swagger"})
	case in.Title == "":
		reply(w, http.StatusUnprocessableEntity, object{"message": "[Title]: Required", "url": f.API + "/swagger"})
	default:
		f.replyCreated(w, made)
	}
}

// updatePull changes the pull request with the given number as r specifies.
func (f giteaAPI) updatePull(w http.ResponseWriter, r *http.Request, number string) {
	var in struct{ Title, Body *string }
	if !input(r, &in) {
		reply(w, http.StatusUnprocessableEntity, object{"message": "[]: invalid JSON"})
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.byNumber(number)
	if p == nil {
		f.notFound(w)
		return
	}
	setIfGiven(&p.Title, in.Title)
	setIfGiven(&p.Body, in.Body)
	p.Draft = giteaDraft(p.Title)
	reply(w, http.StatusCreated, f.showPull(p))
}
