package httpapi

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caisson-dev/caisson"
)

func TestHandlesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newHandleTable()
		put := func() (*os.File, string) {
			f, err := os.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			ids, err := table.add("a", []*os.File{f})
			if err != nil {
				t.Fatal(err)
			}
			return f, ids[0]
		}
		closed := func(f *os.File) bool {
			_, err := f.Stat()
			return err != nil
		}
		late, lateID := put()
		time.Sleep(handleLifetime / 2) // of the bubble's clock
		soon, soonID := put()
		other, otherID := put()
		table.closeUntaken("b", []string{otherID})
		if closed(other) {
			t.Error("another account closes a handle")
		}
		time.Sleep(handleLifetime/2 + time.Second)
		if _, err := table.take("a", []string{lateID}); caisson.KindOf(err) != caisson.Invalid || !closed(late) {
			t.Errorf("an expired handle: %v", err)
		}
		if _, err := table.take("a", []string{soonID, soonID}); err == nil {
			t.Error("one handle was taken twice")
		}
		if taken, err := table.take("a", []string{soonID}); err != nil || len(taken) != 1 || closed(soon) {
			t.Errorf("%v, %v", taken, err)
		}
		time.Sleep(2 * handleLifetime)
		if closed(soon) || !closed(other) {
			t.Error("expiry closes what was taken, or leaves what was not")
		}
		soon.Close()
		table.closeAll()
		f, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := table.add("a", []*os.File{f}); err == nil || !closed(f) {
			t.Error("a closed table takes handles")
		}
	})
}
