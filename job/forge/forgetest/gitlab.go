package forgetest

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// gitLabAPI is the API of GitLab, version 4.
type gitLabAPI struct{ *Forge }

// serve answers a call of the API.
func (f gitLabAPI) serve(w http.ResponseWriter, r *http.Request, user, token string) {
	if user != "Bearer" && user != "PRIVATE-TOKEN" || !f.validToken(token) {
		reply(w, http.StatusUnauthorized, object{"message": "401 Unauthorized"})
		return
	}
	// The path names the project by its escaped path, as one segment, or by its number.
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/api/v4/projects/")
	project, rest, _ := strings.Cut(path, "/")
	if name, err := url.PathUnescape(project); err != nil || name != f.project() && name != fmt.Sprint(repoID) {
		reply(w, http.StatusNotFound, object{"message": "404 Project Not Found"})
		return
	}
	number, one := strings.CutPrefix(rest, "merge_requests/")
	switch {
	case rest == "merge_requests" && r.Method == http.MethodGet:
		f.listPulls(w, r)
	case rest == "merge_requests" && r.Method == http.MethodPost:
		f.createPull(w, r)
	case one && r.Method == http.MethodPut:
		f.updatePull(w, r, number)
	default:
		reply(w, http.StatusNotFound, object{"error": "404 Not Found"})
	}
}

// gitLabDraft reports whether GitLab treats a merge request with this title as a draft.
func gitLabDraft(title string) bool {
	t := strings.ToLower(title)
	return strings.HasPrefix(t, "draft:") || strings.HasPrefix(t, "[draft]") || strings.HasPrefix(t, "(draft)")
}

// showPull returns a merge request as the API shows it.
func (f gitLabAPI) showPull(p *Pull) object {
	state := p.State
	if state == "open" {
		state = "opened"
	}
	return object{
		"id": 90_000 + p.Number, "iid": p.Number, "project_id": repoID, "title": p.Title, "description": p.Body, "state": state,
		"source_branch": p.Head, "target_branch": p.Base, "source_project_id": p.HeadRepo, "target_project_id": repoID,
		"draft": gitLabDraft(p.Title), "work_in_progress": gitLabDraft(p.Title), "web_url": p.URL, "sha": f.tip(p.Head),
		"author": object{"id": 1, "username": "bot"}, "labels": []string{},
	}
}

// listPulls answers with a page of the list of pull requests.
func (f gitLabAPI) listPulls(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f.mu.Lock()
	defer f.mu.Unlock()
	state := map[string]string{"opened": "open", "closed": "closed", "merged": "merged"}[q.Get("state")]
	pulls := f.list(w, r, "per_page", 100, func(p *Pull) bool {
		return (state == "" || p.State == state) && (q.Get("source_branch") == "" || p.Head == q.Get("source_branch")) &&
			(q.Get("target_branch") == "" || p.Base == q.Get("target_branch"))
	})
	reply(w, http.StatusOK, toObjects(pulls, f.showPull))
}

// createPull creates the pull request that r describes.
func (f gitLabAPI) createPull(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Title       string `json:"title"`
		Description string `json:"description"`
		Source      string `json:"source_branch"`
		Target      string `json:"target_branch"`
	}
	if !input(r, &in) {
		reply(w, http.StatusBadRequest, object{"error": "invalid JSON"})
		return
	}
	for _, field := range []struct{ name, value string }{{"title", in.Title}, {"source_branch", in.Source}, {"target_branch", in.Target}} {
		if field.value == "" {
			reply(w, http.StatusBadRequest, object{"error": field.name + " is missing"})
			return
		}
	}
	source, target := f.hasBranch(in.Source), f.hasBranch(in.Target)
	f.mu.Lock()
	have := f.open(in.Source, in.Target)
	var made object
	if have == nil && source && target && in.Source != in.Target {
		made = f.showPull(f.add(in.Source, in.Target, in.Title, in.Description, gitLabDraft(in.Title)))
	}
	f.mu.Unlock()
	switch {
	case in.Source == in.Target:
		reply(w, http.StatusUnprocessableEntity, object{"message": []string{"You can't use same project/branch for source and target"}})
	case !source:
		reply(w, http.StatusUnprocessableEntity, object{"message": []string{fmt.Sprintf("Source branch %q does not exist", in.Source)}})
	case !target:
		reply(w, http.StatusUnprocessableEntity, object{"message": []string{fmt.Sprintf("Target branch %q does not exist", in.Target)}})
	case have != nil:
		reply(w, http.StatusConflict, object{"message": []string{fmt.Sprintf("Another open merge request already exists for this source branch: !%d", have.Number)}})
	default:
		f.replyCreated(w, made)
	}
}

// updatePull changes the pull request with the given number as r specifies.
func (f gitLabAPI) updatePull(w http.ResponseWriter, r *http.Request, number string) {
	var in struct{ Title, Description *string }
	if !input(r, &in) {
		reply(w, http.StatusBadRequest, object{"error": "invalid JSON"})
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.byNumber(number)
	if p == nil {
		reply(w, http.StatusNotFound, object{"message": "404 Not found"})
		return
	}
	setIfGiven(&p.Title, in.Title)
	setIfGiven(&p.Body, in.Description)
	p.Draft = gitLabDraft(p.Title)
	reply(w, http.StatusOK, f.showPull(p))
}
