package remote

import (
	"bytes"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/refname"
	"github.com/caisson-dev/caisson/job/relay/git"
)

func FuzzListing(f *testing.F) {
	id := strings.Repeat("1", 40)
	f.Add([]byte("001e# service=git-upload-pack\n0000000eversion 2\n0000"), []byte("003d"+id+" refs/heads/main\n0000"))
	f.Add([]byte("001e# service=git-upload-pack\n0000003f"+id+" refs/heads/main\x00\n0000"), []byte(nil))
	f.Add([]byte("000eversion 1\n0000"), []byte("0000"))
	f.Fuzz(func(t *testing.T, adv, answer []byte) {
		l := &Listing{max: 3}
		ask, err := l.readAdvertisement(git.NewPktReader(bytes.NewReader(adv), 1<<16))
		if err == nil && ask {
			err = l.readRefs(git.NewPktReader(bytes.NewReader(answer), 1<<16))
		}
		if err != nil || l.finish() != nil {
			return
		}
		if len(l.Refs) > l.max || git.CheckRefs(l.Refs) != nil || l.Head != "" && !refname.ValidFull(l.Head) {
			t.Errorf("%+v", l)
		}
	})
}

func FuzzGitRequest(f *testing.F) {
	f.Add([]byte("git-upload-pack /repo\x00host=x\x00\x00version=2\x00"))
	f.Fuzz(func(t *testing.T, line []byte) {
		service, protocol, ok := parseGitRequest(line)
		if ok && (service != UploadPack && service != ReceivePack || !ValidProtocol(protocol)) {
			t.Errorf("%q, %q", service, protocol)
		}
	})
}
