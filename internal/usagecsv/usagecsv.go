// Package usagecsv writes ledger data as CSV, for spreadsheets and billing programs.
package usagecsv

import (
	"encoding/csv"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// WriteRows writes the rows of a usage report as CSV, after a header line.
func WriteRows(w io.Writer, rows []caisson.UsageRow) error {
	return write(w, "key,calls,failed,estimated,input,output,cache_read,cache_write,cost", rows, func(r caisson.UsageRow) []string {
		t := r.Tokens
		return []string{
			escapeFormula(r.Key), number(r.Calls), number(r.Failed), number(r.Estimated),
			number(t.Input), number(t.Output), number(t.CacheRead), number(t.CacheWrite), r.Cost.String(),
		}
	})
}

// WriteCalls writes calls of models as CSV, after a header line.
func WriteCalls(w io.Writer, calls []caisson.Call) error {
	const head = "id,at,account,sandbox,run,attempt,session,agent,user,provider,model,upstream,api,stream,status,error," +
		"input,output,cache_read,cache_write,cost,estimated,upstream_id,upstream_cost,first_byte,duration,lineage,trace"
	return write(w, head, calls, func(c caisson.Call) []string {
		t, upstreamCost := c.Tokens, ""
		if c.UpstreamCost != nil {
			upstreamCost = c.UpstreamCost.String()
		}
		return []string{
			string(c.ID), c.At.UTC().Format(time.RFC3339Nano), escapeFormula(c.Account), string(c.Sandbox), escapeFormula(c.Run), strconv.Itoa(c.Attempt),
			escapeFormula(c.Session), escapeFormula(c.Agent), escapeFormula(c.User), escapeFormula(c.Provider), escapeFormula(c.Model), escapeFormula(c.Upstream), escapeFormula(c.API),
			strconv.FormatBool(c.Stream), strconv.Itoa(c.Status), escapeFormula(c.Error),
			number(t.Input), number(t.Output), number(t.CacheRead), number(t.CacheWrite), c.Cost.String(),
			strconv.FormatBool(c.Estimated), escapeFormula(c.UpstreamID), upstreamCost, c.FirstByte.String(), c.Duration.String(),
			escapeFormula(c.Lineage), escapeFormula(c.Trace),
		}
	})
}

// WriteReceipts writes the receipts of calls as CSV, after a header line.
func WriteReceipts(w io.Writer, receipts []caisson.Receipt) error {
	return write(w, "source,reference,account,cost,estimated,at", receipts, func(r caisson.Receipt) []string {
		return []string{
			escapeFormula(r.Source), escapeFormula(r.Reference), escapeFormula(r.Account), r.Cost.String(), strconv.FormatBool(r.Estimated),
			r.At.UTC().Format(time.RFC3339Nano),
		}
	})
}

// write writes the header line head and one line for each element of list.
func write[T any](w io.Writer, head string, list []T, line func(T) []string) error {
	cw := csv.NewWriter(w)
	if err := cw.Write(strings.Split(head, ",")); err != nil {
		return err
	}
	for _, v := range list {
		if err := cw.Write(line(v)); err != nil {
			return err
		}
	}
	cw.Flush()
	return cw.Error()
}

// number returns n in decimal digits.
func number(n int64) string { return strconv.FormatInt(n, 10) }

// escapeFormula prevents spreadsheets from treating untrusted text as a formula.
func escapeFormula(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}
