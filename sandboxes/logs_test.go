package sandboxes_test

import (
	"io"
)

// log returns the whole log of a sandbox.
func (w *world) log(ref string) string {
	w.t.Helper()
	r := got(w.Processes().Logs(w.ctx(), ref, false))(w.t)
	defer r.Close()
	return string(got(io.ReadAll(r))(w.t))
}
