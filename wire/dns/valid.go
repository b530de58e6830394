package dns

import "strings"

// maxName is the length of the longest name in text form, without the final dot.
const maxName = 253

// lower returns name, as encoded in a message, in lower case without the final dot.
func lower(name string) string {
	b := []byte(strings.TrimSuffix(name, "."))
	for i, c := range b {
		if 'A' <= c && c <= 'Z' { // not strings.ToLower, which would change bytes beyond ASCII
			b[i] = c | 0x20
		}
	}
	return string(b)
}

// validName reports whether name, in lower case, is a host name: letters, digits, hyphens and, because such names exist,
// underscores. Internationalized names are encoded as xn--.
func validName(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return false
			}
		}
	}
	return true
}

// isWithin reports whether name is zone or below it.
func isWithin(name, zone string) bool {
	below, ok := strings.CutSuffix(name, zone)
	return ok && (below == "" || below[len(below)-1] == '.')
}
