package remote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/job/relay/git"
)

// maxListing limits the size of a remote's list of refs in bytes, including refs that are ignored: forges list two refs for each
// pull request.
const maxListing = 64 << 20

// A Listing has the refs of a remote. It is also the state of the parser that reads them.
type Listing struct {
	max    int    // maximum number of refs
	Digits int    // hexadecimal digits of an object name; 0 until known
	Head   string // full name of the branch that HEAD points to; "" if unknown
	headID string // commit that HEAD points to; "" if unknown
	Refs   []git.Ref
}

// errListing returns the error for an answer that is not that of a git server.
func errListing(format string, args ...any) error {
	return caisson.Wrap(errors.New(git.OneLine(caisson.MessageOf(caisson.Errorf(caisson.Denied, format, args...)), 300)), caisson.Denied,
		"what the remote answers is not git's protocol; check the URL")
}

// List requests the branches, tags and HEAD of the remote. It does not use git for that, because git would hold the remote's
// whole answer in memory and parse every name.
func (f *Forwarder) List(ctx context.Context, maxRefs int) (*Listing, error) {
	f.Allow(maxListing)
	l := &Listing{max: maxRefs}
	ask := f.listHTTP
	if f.transport == ProtocolStream {
		ask = f.listStream
	}
	if err := ask(ctx, l); err != nil {
		if errors.Is(err, git.ErrPkt) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			err = errListing("%v", err)
		}
		return nil, err
	}
	return l, l.finish()
}

// listHTTP requests the refs over smart HTTP and reads them into l.
func (f *Forwarder) listHTTP(ctx context.Context, l *Listing) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://link/info/refs?service="+UploadPack, nil)
	if err != nil {
		return err
	}
	req.Header.Set(HeaderProtocol, "version=2")
	resp, err := f.roundTrip(req, "application/x-"+UploadPack+"-advertisement")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	second, err := l.readAdvertisement(git.NewPktReader(resp.Body, 2*maxListing))
	if err != nil || !second {
		return err
	}
	var ask bytes.Buffer
	if err := l.writeRequest(&ask); err != nil {
		return err
	}
	req, err = http.NewRequestWithContext(ctx, http.MethodPost, "http://link/"+UploadPack, &ask)
	if err != nil {
		return err
	}
	req.Header.Set(HeaderProtocol, "version=2")
	req.Header.Set("Content-Type", "application/x-"+UploadPack+"-request")
	req.Header.Set("Accept", "application/x-"+UploadPack+"-result")
	answer, err := f.roundTrip(req, "application/x-"+UploadPack+"-result")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	return l.readRefs(git.NewPktReader(answer.Body, 2*maxListing))
}

// listStream requests the refs from a git program at the remote and reads them into l.
func (f *Forwarder) listStream(ctx context.Context, l *Listing) error {
	in, out := io.Pipe()
	defer out.Close()
	resp, err := f.open(ctx, UploadPack, "version=2", in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := git.NewPktReader(resp.Body, 2*maxListing)
	second, err := l.readAdvertisement(lines)
	if errors.Is(err, io.EOF) {
		return errStream
	}
	if err != nil {
		return err
	}
	if second {
		if err := l.writeRequest(out); err != nil {
			return err
		}
		if err := l.readRefs(lines); err != nil {
			return err
		}
	}
	return git.WriteFlush(out) // the flush ends the session
}

// nextText returns the next line without its trailing newline. If the line is an error of the remote, nextText returns it as err.
func (l *Listing) nextText(lines *git.PktReader) (string, git.PktKind, error) {
	line, kind, err := lines.Next()
	if err != nil || kind != git.PktLine {
		return "", kind, err
	}
	if said, ok := bytes.CutPrefix(line, []byte("ERR ")); ok {
		return "", kind, caisson.Errorf(caisson.Denied, "the remote refuses: %s", git.OneLine(string(said), 300))
	}
	return strings.TrimSuffix(string(line), "\n"), kind, nil
}

// readAdvertisement reads the beginning of a server's answer: the list of refs, or the capabilities of version 2. It reports
// whether the refs have to be requested.
func (l *Listing) readAdvertisement(lines *git.PktReader) (ask bool, err error) {
	line, kind, err := l.nextText(lines)
	if err != nil {
		return false, err
	}
	if strings.HasPrefix(line, "# service=") { // smart HTTP begins with a separate list that names the service
		if _, kind, err = l.nextText(lines); err != nil || kind != git.PktFlush {
			return false, errors.Join(err, errListing("a service line without an end"))
		}
		if line, kind, err = l.nextText(lines); err != nil {
			return false, err
		}
	}
	if line == "version 2" {
		return true, l.readCapabilities(lines)
	}
	if line == "version 1" {
		if line, kind, err = l.nextText(lines); err != nil {
			return false, err
		}
	}
	first := true
	for ; kind == git.PktLine; line, kind, err = l.nextText(lines) {
		if err := l.parseLegacy(line, first); err != nil {
			return false, err
		}
		first = false
	}
	if err == nil && kind != git.PktFlush {
		err = errListing("a list that does not end with a flush")
	}
	return false, err
}

// readCapabilities reads the capabilities of a server of version 2.
func (l *Listing) readCapabilities(lines *git.PktReader) error {
	l.Digits = git.HexSHA1
	for {
		line, kind, err := l.nextText(lines)
		if err != nil {
			return err
		}
		if kind != git.PktLine {
			return nil
		}
		if format, ok := strings.CutPrefix(line, "object-format="); ok {
			if err := l.setFormat(format); err != nil {
				return err
			}
		}
	}
}

// setFormat sets Digits for the object format with the given name.
func (l *Listing) setFormat(name string) error {
	switch name {
	case "sha1":
		l.Digits = git.HexSHA1
	case "sha256":
		l.Digits = git.HexSHA256
	default:
		return caisson.Errorf(caisson.Denied, "the remote names its objects by %.40q, which is not known here", name)
	}
	return nil
}

// writeRequest writes the request for refs of version 2.
func (l *Listing) writeRequest(w io.Writer) error {
	var b bytes.Buffer
	format := "sha1"
	if l.Digits == git.HexSHA256 {
		format = "sha256"
	}
	git.WritePktf(&b, "command=ls-refs\n")
	git.WritePktf(&b, "object-format=%s\n", format)
	b.WriteString("0001")
	for _, arg := range []string{"symrefs", "ref-prefix HEAD", "ref-prefix refs/heads/", "ref-prefix refs/tags/"} {
		git.WritePktf(&b, "%s\n", arg)
	}
	git.WriteFlush(&b)
	_, err := w.Write(b.Bytes())
	return err
}

// readRefs reads the refs of version 2, lines of the form "<id> <name>[ symref-target:<name>]".
func (l *Listing) readRefs(lines *git.PktReader) error {
	for {
		line, kind, err := l.nextText(lines)
		if err != nil {
			return err
		}
		if kind != git.PktLine {
			return nil
		}
		fields := strings.Split(line, " ")
		if len(fields) < 2 {
			return errListing("a ref without a name")
		}
		if fields[0] == "unborn" {
			continue
		}
		target := ""
		for _, attr := range fields[2:] {
			if t, ok := strings.CutPrefix(attr, "symref-target:"); ok {
				target = t
			}
		}
		if err := l.add(fields[0], fields[1], target); err != nil {
			return err
		}
	}
}

// parseLegacy reads a line of the list of refs in versions 0 and 1; the first line also contains the capabilities.
func (l *Listing) parseLegacy(line string, first bool) error {
	ref, abilities, _ := strings.Cut(line, "\x00")
	head := ""
	if first {
		l.Digits = git.HexSHA1
		for ability := range strings.FieldsSeq(abilities) {
			if t, ok := strings.CutPrefix(ability, "symref=HEAD:"); ok {
				head = t
			}
			if name, ok := strings.CutPrefix(ability, "object-format="); ok {
				if err := l.setFormat(name); err != nil {
					return err
				}
			}
		}
	}
	id, name, ok := strings.Cut(ref, " ")
	switch {
	case id == "shallow":
		return caisson.Errorf(caisson.Denied, "the remote is a shallow clone; use the repository it was cloned from")
	case !ok:
		return errListing("a ref without a name")
	case name == "capabilities^{}":
		return nil // an empty repository has this line instead of refs
	}
	return l.add(id, name, head)
}

// add adds a ref, unless its name is not that of a branch or tag. target is the branch that HEAD points to, "" if the server has
// not reported it.
func (l *Listing) add(id, name, target string) error {
	if refname.ValidFull(target) && l.Head == "" {
		l.Head = target
	}
	if !git.ValidCommit(id) || len(id) != l.Digits {
		return errListing("%q is not the name of an object", id)
	}
	if name == "HEAD" {
		l.headID = id
	}
	if !refname.ValidFull(name) {
		return nil // ignored: refs of pull requests, notes, peeled tags, and invalid names
	}
	if len(l.Refs) == l.max {
		return caisson.Errorf(caisson.Exhausted, "the remote has more than %d branches and tags; delete some there, or raise the limit", l.max)
	}
	l.Refs = append(l.Refs, git.Ref{Name: name, Commit: id})
	return nil
}

// finish sorts the refs and checks that they can exist in one repository.
func (l *Listing) finish() error {
	slices.SortFunc(l.Refs, func(a, b git.Ref) int { return strings.Compare(a.Name, b.Name) })
	has := make(map[string]string, len(l.Refs))
	for _, r := range l.Refs {
		if has[r.Name] != "" {
			return errListing("%s occurs twice", r.Name)
		}
		has[r.Name] = r.Commit
	}
	for _, r := range l.Refs {
		for dir := r.Name; strings.Count(dir, "/") > 2; {
			dir = dir[:strings.LastIndexByte(dir, '/')]
			if has[dir] != "" {
				return errListing("%s and %s are both there", dir, r.Name)
			}
		}
	}
	if !strings.HasPrefix(l.Head, "refs/heads/") || has[l.Head] == "" {
		l.Head = ""
	}
	// For servers that do not report the branch of HEAD: use main, master or else any branch at the commit of HEAD.
	for _, name := range append([]string{"refs/heads/main", "refs/heads/master"}, namesOf(l.Refs)...) {
		if l.Head == "" && l.headID != "" && has[name] == l.headID && strings.HasPrefix(name, "refs/heads/") {
			l.Head = name
		}
	}
	return nil
}

// namesOf returns the names of refs.
func namesOf(refs []git.Ref) []string {
	names := make([]string, len(refs))
	for i, r := range refs {
		names[i] = r.Name
	}
	return names
}
