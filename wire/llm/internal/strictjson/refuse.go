package strictjson

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson/wire/llm/dialect"
)

// Refuse returns a [*dialect.Refusal] with status 400 and code invalid_request. param is the invalid field, or "" for the whole
// body. Format values from a guest with %.40q.
func Refuse(param, format string, args ...any) error {
	return &dialect.Refusal{Status: http.StatusBadRequest, Code: "invalid_request", Param: param, Message: fmt.Sprintf(format, args...)}
}

// InField prepends the name of a field to err's Param. Functions that check nested fields call it when they return an error, so
// that the Param of the error is the whole path of the field. InField returns nil if err is nil.
func InField(err error, field string) error {
	if err == nil {
		return nil
	}
	r, ok := errors.AsType[*dialect.Refusal](err)
	if !ok {
		return err
	}
	c := *r
	switch {
	case c.Param == "":
		c.Param = field
	case strings.HasPrefix(c.Param, "["):
		c.Param = field + c.Param
	default:
		c.Param = field + "." + c.Param
	}
	return &c
}

// InElement prepends the index of an element of an array, in brackets, to err's Param. It returns nil if err is nil.
func InElement(err error, i int) error {
	if err == nil {
		return nil
	}
	return InField(err, "["+strconv.Itoa(i)+"]")
}
