// Package errno converts error numbers of the kernel to kinds of [caisson.Error].
package errno

import (
	"errors"
	"io/fs"
	"syscall"

	"github.com/caisson-dev/caisson"
)

// kinds maps error numbers to kinds. Numbers that are not listed are Internal errors.
var kinds = map[syscall.Errno]caisson.Kind{
	syscall.ENOENT:       caisson.NotFound,
	syscall.EEXIST:       caisson.Conflict,
	syscall.ENOTDIR:      caisson.Conflict,
	syscall.EISDIR:       caisson.Conflict,
	syscall.ENOTEMPTY:    caisson.Conflict,
	syscall.EBUSY:        caisson.Conflict,
	syscall.ETXTBSY:      caisson.Conflict,
	syscall.EXDEV:        caisson.Conflict,
	syscall.EACCES:       caisson.Denied,
	syscall.EPERM:        caisson.Denied,
	syscall.EROFS:        caisson.Denied,
	syscall.EINVAL:       caisson.Invalid,
	syscall.ELOOP:        caisson.Invalid,
	syscall.ENAMETOOLONG: caisson.Invalid,
	syscall.ENOSPC:       caisson.Exhausted,
	syscall.EDQUOT:       caisson.Exhausted,
	syscall.EFBIG:        caisson.Exhausted,
	syscall.EMFILE:       caisson.Exhausted,
	syscall.ENFILE:       caisson.Exhausted,
	syscall.ENOMEM:       caisson.Exhausted,
}

// Wrap returns err as a [*caisson.Error] of the kind for its error number, with the path in err if it has one. A
// *caisson.Error and an error without a listed error number are returned unmodified.
func Wrap(err error) error {
	if _, ok := errors.AsType[*caisson.Error](err); ok {
		return err
	}
	number, ok := errors.AsType[syscall.Errno](err)
	kind, known := kinds[number]
	if !ok || !known {
		return err
	}
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return caisson.Wrap(err, kind, "%s: %s", p.Path, number.Error())
	}
	return caisson.Wrap(err, kind, "%s", number.Error())
}
