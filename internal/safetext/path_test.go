package safetext

import "testing"

func TestShowPath(t *testing.T) {
	for path, want := range map[string]string{"a/é": "a/é", "a\xffb\xc3": `a\xffb\xc3`, "\n": "\n"} {
		if got := Path(path); got != want {
			t.Errorf("%q is shown as %q", path, got)
		}
	}
}
