package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// Limits of reading spend logs.
const (
	spendTimeout  = time.Minute // timeout of one request
	maxSpendBytes = 256 << 20   // maximum size of a response in bytes
	maxSpendLogs  = 1_000_000   // maximum number of entries of a response
)

// FetchSpendLogs fetches the spend logs of a LiteLLM proxy since the given time, including the calls of all end users. baseURL is
// the base URL of the provider, with or without /v1. client is the HTTP client for requests to providers. Redirects are not
// followed, because the request contains the key.
func FetchSpendLogs(ctx context.Context, client *http.Client, baseURL string, key caisson.Secret, since, now time.Time) ([]SpendLog, error) {
	u, err := url.Parse(baseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, caisson.Invalidf("baseURL", "%.100q is not the URL of a LiteLLM proxy", baseURL)
	}
	u = u.JoinPath("spend", "logs")
	u.Path = strings.Replace(u.Path, "/v1/spend/logs", "/spend/logs", 1)
	u.RawPath = ""
	u.RawQuery = url.Values{
		// LiteLLM filters by day, and may include the end date or not. Without summarize=false it returns sums instead of calls.
		"start_date": {since.UTC().Format(time.DateOnly)}, "end_date": {now.UTC().AddDate(0, 0, 1).Format(time.DateOnly)}, "summarize": {"false"},
	}.Encode()
	ctx, cancel := context.WithTimeout(ctx, spendTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+key.Reveal())
	req.Header.Set("Accept", "application/json")
	c := *client
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := c.Do(req)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Unavailable, "the LiteLLM proxy at %s does not answer", u.Host)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, caisson.Errorf(caisson.Unavailable, "the LiteLLM proxy at %s answered %d for its spend logs; its key must be one that may read them", u.Host, resp.StatusCode)
	}
	logs, err := parseSpendLogs(io.LimitReader(resp.Body, maxSpendBytes))
	return logs, caisson.Wrap(err, caisson.Unavailable, "the LiteLLM proxy at %s sent spend logs that cannot be read", u.Host)
}

// spendLog holds the fields of an entry of LiteLLM's spend logs that are used here.
type spendLog struct {
	RequestID string   `json:"request_id"`
	EndUser   string   `json:"end_user"` // the account of the call
	Spend     *float64 `json:"spend"`    // cost in dollars
	StartTime string   `json:"startTime"`
}

// parseSpendLogs decodes a JSON list of entries as a stream. An entry without a time, an id or a cost is an error, because
// leaving it out could report a false discrepancy or hide a real one.
func parseSpendLogs(r io.Reader) ([]SpendLog, error) {
	d := json.NewDecoder(r)
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, errors.Join(errors.New("spend logs are not a list"), err)
	}
	var logs []SpendLog
	for d.More() {
		var e spendLog
		if err := d.Decode(&e); err != nil {
			return nil, err
		}
		at, err := parseSpendTime(e.StartTime)
		if err != nil {
			return nil, err
		}
		if e.RequestID == "" || e.Spend == nil || !(*e.Spend >= 0 && *e.Spend <= 1e6) {
			return nil, errors.New("an entry of the spend logs has no id or no valid cost")
		}
		if len(logs) == maxSpendLogs {
			return nil, errors.New("there are too many spend logs; ask for a shorter time")
		}
		logs = append(logs, SpendLog{
			ID: e.RequestID, Account: e.EndUser, At: at, Cost: caisson.USD(math.Round(*e.Spend * float64(caisson.Dollar))),
		})
	}
	_, err := d.Token()
	return logs, err
}

// parseSpendTime parses the time formats of all LiteLLM versions. A time without a zone is in UTC.
func parseSpendTime(s string) (t time.Time, err error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05"} {
		if t, err = time.Parse(layout, s); err == nil {
			return t.UTC(), nil
		}
	}
	return t, errors.New("an entry of the spend logs has no time that can be read")
}
