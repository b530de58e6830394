package usagecsv

import (
	"encoding/csv"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

func TestColumns(t *testing.T) {
	var b strings.Builder
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, write := range map[string]func() error{
		"rows":  func() error { return WriteRows(&b, []caisson.UsageRow{{Key: "=cmd", Calls: 1, Cost: 5}}) },
		"calls": func() error { return WriteCalls(&b, []caisson.Call{{ID: "ca-1", At: at, Error: "a,\"b\"\n"}}) },
		"receipts": func() error {
			return WriteReceipts(&b, []caisson.Receipt{{Source: "caisson", Reference: "r/0/ca-1", At: at}})
		},
	} {
		b.Reset()
		if err := write(); err != nil {
			t.Fatal(err)
		}
		lines, err := csv.NewReader(strings.NewReader(b.String())).ReadAll() // Requires lines of one length.
		if err != nil || len(lines) != 2 {
			t.Errorf("%s: %v %q", name, err, b.String())
		}
	}
	b.Reset()
	_ = WriteRows(&b, []caisson.UsageRow{{Key: "=1+1", Cost: caisson.Dollar / 4}})
	if want := "\n'=1+1,0,0,0,0,0,0,0,0.25\n"; !strings.HasSuffix(b.String(), want) {
		t.Errorf("%q does not end with %q", b.String(), want)
	}
}
