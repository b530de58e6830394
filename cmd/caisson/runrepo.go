package main

import (
	"fmt"
	"strings"

	"github.com/caisson-dev/caisson"
)

// branchFlags are the flags for the branches of a repository that a sandbox can use.
type branchFlags struct {
	Base   string   `help:"Branch to start from; default the repository's default branch." group:"repo" placeholder:"BRANCH"`
	Branch string   `help:"Branch for the commits; default caisson/ and the id of the run or sandbox." group:"repo" placeholder:"BRANCH"`
	Read   []string `help:"Another branch that can be read; may be repeated." group:"repo" placeholder:"BRANCH" sep:"none"`
}

// pullFlags are the flags for a pull request.
type pullFlags struct {
	PR    bool   `name:"pr" help:"Open a pull request, as a draft." group:"repo"`
	Ready bool   `help:"With --pr: not as a draft." group:"repo"`
	Title string `help:"Title of the pull request, and of a commit of what was not committed; default the subject of the first commit." group:"repo" placeholder:"TEXT"`
}

// check returns an error if --ready was given without --pr. command names the command in the error.
func (f *pullFlags) check(command string) error {
	if f.Ready && !f.PR {
		return usagef(command, "--ready needs --pr")
	}
	return nil
}

// repoFlags are the flags that grant a run access to a repository.
type repoFlags struct {
	Repo string `help:"Work on this repository: it is cloned into the workspace, and what the agent does there is checked and sent to its remote as a branch. See repo ls." group:"repo" placeholder:"NAME" complete:"repo"`
	branchFlags
	pullFlags
}

// request returns the repository request that the flags specify; nil if they specify no repository.
func (f *repoFlags) request(directory string) (*caisson.RepoRequest, error) {
	given := f.Base != "" || f.Branch != "" || len(f.Read) > 0 || f.PR || f.Ready || f.Title != ""
	switch {
	case f.Repo == "" && given:
		return nil, usagef("run", "--base, --branch, --read, --pr, --ready and --title need --repo")
	case f.Repo == "":
		return nil, nil
	case directory != "":
		return nil, usagef("run", "work on a directory with -C, or on a repository with --repo, not on both")
	}
	if err := f.check("run"); err != nil {
		return nil, err
	}
	return &caisson.RepoRequest{Name: f.Repo, Base: f.Base, Branch: f.Branch, Read: f.Read, Pull: f.PR, Ready: f.Ready, Title: f.Title}, nil
}

// printDelivery prints the state of the delivery of a run's commits.
func (v *runView) printDelivery(d *caisson.RunDelivery) {
	if d == nil {
		return
	}
	if d.Left != "" {
		v.writeLine("some of what was done for %s is not delivered%s", d.Repo, reasonText(d.Left))
	}
	v.writeLine("%s", deliveryText(d))
}

// deliveryText returns the state of a delivery as a sentence, with the commands that can be used next.
func deliveryText(d *caisson.RunDelivery) string {
	switch d.State {
	case "":
		return "there is nothing new for " + d.Repo
	case caisson.DeliveryDelivered:
		return strings.TrimRight(fmt.Sprintf("delivered to branch %s of %s: %s", d.Branch, d.Repo, d.URL), ": ")
	case caisson.DeliveryHeld:
		return fmt.Sprintf("delivery %s to %s is held%s; look at it with: caisson relay show %s; send it with: caisson relay retry %s",
			d.ID, d.Repo, reasonText(d.Error), d.ID, d.ID)
	case caisson.DeliveryFailed:
		if d.ID == "" { // there is no delivery, because the commits could not be fetched from the sandbox
			return fmt.Sprintf("nothing was delivered to %s%s", d.Repo, reasonText(d.Error))
		}
		return fmt.Sprintf("delivery %s to %s has failed%s; try it again with: caisson relay retry %s", d.ID, d.Repo, reasonText(d.Error), d.ID)
	default:
		return fmt.Sprintf("delivery %s to branch %s of %s is %s%s; caisson relay show %s shows its progress",
			d.ID, d.Branch, d.Repo, d.State, reasonText(d.Error), d.ID)
	}
}

// reasonText returns a blank and the reason in parentheses, or "" if reason is "".
func reasonText(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + oneLine(reason) + ")"
}

// deliveryRow returns the state, id, branch and URL of the delivery of a run's commits in one line; "" if there is no delivery.
func deliveryRow(d *caisson.RunDelivery) string {
	if d == nil || d.State == "" {
		return ""
	}
	return strings.Join(strings.Fields(string(d.State)+" "+string(d.ID)+" "+d.Branch+" "+d.URL+reasonText(d.Error)), " ")
}

// repoOf returns the name of the repository that a run works on, or "" if there is none.
func repoOf(r *caisson.Run) string {
	if r.Request.Repo == nil {
		return ""
	}
	return r.Request.Repo.Name
}
