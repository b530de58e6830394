package strictjson

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson/llm/dialect"
)

// Refuse returns a [*dialect.Refusal] with status 400 and code invalid_request. param is the field at fault, "" for all of it.
// Quote what a guest sent with %.40q.
func Refuse(param, format string, args ...any) error {
	return &dialect.Refusal{Status: http.StatusBadRequest, Code: "invalid_request", Param: param, Message: fmt.Sprintf(format, args...)}
}

// In puts the field in which err was found before err's Param: what is cheap to do on the way out of a check need not be
// carried along on the way in. It returns nil if err is.
func In(err error, field string) error {
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

// At is [In] for the element of an array.
func At(err error, i int) error {
	if err == nil {
		return nil
	}
	return In(err, "["+strconv.Itoa(i)+"]")
}
