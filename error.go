package caisson

import (
	"errors"
	"fmt"
)

// Kind classifies an error: the HTTP status of a response and the exit code of a command depend only on the kind. The values are
// sent as strings over the API, so kinds may be added, but not renamed or removed.
type Kind string

// The kinds of error. Any error that is not an [*Error] counts as Internal and is shown to users as "internal error".
const (
	Internal    Kind = "internal"        // a fault of Caisson or its host; details are in the daemon's log
	Invalid     Kind = "invalid"         // the request is malformed; Field is the field at fault
	NotFound    Kind = "not_found"       // no such object, or none that the caller may access
	Conflict    Kind = "conflict"        // the object is in the wrong state, or already exists
	Denied      Kind = "denied"          // the caller may not do this
	Unauthed    Kind = "unauthenticated" // the caller is not authenticated
	Exhausted   Kind = "exhausted"       // a quota, limit or resource is used up
	Unavailable Kind = "unavailable"     // a dependency cannot be reached at present; a retry may succeed
)

// An Error has a message for users, which contains the next step if there is one, and a cause that is only logged.
type Error struct {
	Kind  Kind
	Field string // the field at fault, as the user wrote it ("resources.memory"); always set for Invalid
	Msg   string // message for users
	Err   error  // cause, only logged; may be nil
}

// Error returns the message and the messages of all causes, for logs. Users see only the result of [MessageOf].
func (e *Error) Error() string {
	msg := e.Msg
	if e.Field != "" {
		msg = e.Field + ": " + msg
	}
	if e.Err != nil {
		return msg + ": " + e.Err.Error()
	}
	return msg
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an error of kind k without a cause.
func Errorf(k Kind, format string, args ...any) error {
	return &Error{Kind: k, Msg: fmt.Sprintf(format, args...)}
}

// Invalidf returns an Invalid error about one field.
func Invalidf(field, format string, args ...any) error {
	return &Error{Kind: Invalid, Field: field, Msg: fmt.Sprintf(format, args...)}
}

// Wrap returns an error of kind k with a message for users. The cause is only logged. Wrap returns nil if cause is nil.
func Wrap(cause error, k Kind, format string, args ...any) error {
	if cause == nil {
		return nil
	}
	return &Error{Kind: k, Msg: fmt.Sprintf(format, args...), Err: cause}
}

// KindOf returns the kind of the outermost [*Error] in err's chain, Internal if there is none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// IgnoreNotFound returns nil if err is of kind NotFound, and otherwise err.
func IgnoreNotFound(err error) error {
	if KindOf(err) == NotFound {
		return nil
	}
	return err
}

// FieldOf returns the field that the outermost [*Error] in err's chain names, or "".
func FieldOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Field
	}
	return ""
}

// MessageOf returns the message of err for users.
func MessageOf(err error) string {
	e, ok := errors.AsType[*Error](err)
	switch {
	case !ok:
		return "internal error; the daemon's log has the details"
	case e.Field != "":
		return e.Field + ": " + e.Msg
	default:
		return e.Msg
	}
}
