package check

import (
	"context"
	"fmt"
	"time"

	"github.com/caisson-dev/caisson"
)

// secretMessage is the format of a finding about a secret. Its arguments are the id of the rule that has matched, and the
// description of the rule.
const secretMessage = "this looks like a secret (%s): %s"

// secretVerdict returns the verdict on a possible secret in the file at the path name, or in a text that is not a file if name
// is "".
func (r *Rules) secretVerdict(name string) string {
	if r.History && (name == "" || !matchAny(r.AskSecrets, name)) {
		return caisson.VerdictDeny
	}
	return caisson.VerdictAsk
}

// Text searches a text that is not a file, such as a commit's message, for secrets. It returns at most 10 findings. It returns
// an error if the text was not searched completely. The error is Exhausted if the text is larger than rules.MaxScan or the
// search takes longer than rules.ScanTime.
func Text(ctx context.Context, text string, rules Rules) ([]caisson.Finding, error) {
	r := rules.WithDefaults()
	if len(text) > int(r.MaxScan) {
		return nil, caisson.Errorf(caisson.Exhausted, "the text is larger than %v, and was not searched for secrets", r.MaxScan)
	}
	all, err := LoadSecretRules()
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "the rules for secrets cannot be read")
	}
	timed, cancel := context.WithTimeout(ctx, time.Duration(r.ScanTime))
	defer cancel()
	secrets, err := all.find(timed, "", text)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Exhausted, "it took too long to search the text for secrets; raise scanTime if that is wanted")
	}
	var found []caisson.Finding
	for _, s := range secrets {
		found = append(found, caisson.Finding{
			Check: checkSecret, Verdict: r.secretVerdict(""), Line: s.Line, Message: fmt.Sprintf(secretMessage, s.Rule, s.description),
		})
	}
	return found, nil
}
