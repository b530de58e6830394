package guestd

import (
	"bufio"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// An identity is the user and the groups that a specification USER[:GROUP] means in the sandbox.
type identity struct {
	uid, gid int    // ids of the user and of the primary group
	groups   []int  // supplementary groups, including gid
	home     string // home directory; "/" if the user has no entry in /etc/passwd
}

const maxID = 1<<32 - 2 // the largest uid or gid; the next number is -1, which means "do not change" in system calls

// resolveUser resolves spec, "USER[:GROUP]", with the files passwd and group in the directory etc. Numeric ids need no entry in
// these files. If spec names a group, the identity has no other supplementary groups.
func resolveUser(etc fs.FS, spec string) (*identity, error) {
	user, group, explicit := strings.Cut(spec, ":")
	if user == "" || (explicit && group == "") {
		return nil, caisson.Invalidf("user", "%.60q is not of the form USER or USER:GROUP", spec)
	}
	id := &identity{uid: -1, home: "/"}
	number, isNumber := parseID(user)
	if isNumber {
		id.uid = number
	}
	name := ""
	err := scanFields(etc, "passwd", 7, func(f []string) bool {
		uid, ok1 := parseID(f[2])
		gid, ok2 := parseID(f[3])
		if !ok1 || !ok2 || (f[0] != user && (!isNumber || uid != number)) {
			return true
		}
		name, id.uid, id.gid, id.home = f[0], uid, gid, f[5]
		return false
	})
	if err != nil {
		return nil, err
	}
	if id.uid < 0 {
		return nil, caisson.Invalidf("user", "there is no user %.60q in the sandbox's /etc/passwd", user)
	}
	if explicit {
		if id.gid, err = resolveGroup(etc, group); err != nil {
			return nil, err
		}
		id.groups = []int{id.gid}
		return id, nil
	}
	id.groups = []int{id.gid}
	err = scanFields(etc, "group", 4, func(f []string) bool {
		if gid, ok := parseID(f[2]); ok && name != "" && gid != id.gid && slices.Contains(strings.Split(f[3], ","), name) {
			id.groups = append(id.groups, gid)
		}
		return true
	})
	return id, err
}

// resolveGroup returns the gid of group, which is a gid or a name in the file group in the directory etc.
func resolveGroup(etc fs.FS, group string) (int, error) {
	if gid, ok := parseID(group); ok {
		return gid, nil
	}
	found := -1
	err := scanFields(etc, "group", 4, func(f []string) bool {
		if gid, ok := parseID(f[2]); ok && f[0] == group {
			found = gid
		}
		return found < 0
	})
	if err == nil && found < 0 {
		err = caisson.Invalidf("user", "there is no group %.60q in the sandbox's /etc/group", group)
	}
	return found, err
}

// parseID parses a uid or gid, and reports whether it is valid.
func parseID(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return int(n), err == nil && n <= maxID
}

// scanFields calls each with the colon-separated fields of every line, of the file called name in the directory etc, that has the
// given number of fields, until each returns false. A missing file is treated as empty. Lines longer than 64 KiB are skipped.
func scanFields(etc fs.FS, name string, fields int, each func([]string) bool) error {
	f, err := etc.Open(name)
	if err != nil {
		return nil // the image has no such file, as if it had no users; numeric ids still work
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 64<<10)
	for {
		line, long, err := r.ReadLine()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		for rest := long; rest && err == nil; {
			_, rest, err = r.ReadLine()
		}
		if part := strings.Split(string(line), ":"); !long && len(part) == fields && !each(part) {
			return nil
		}
	}
}
