package notify_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/notify"
	"github.com/caisson-dev/caisson/internal/poll"
)

// TestWatch: a change wakes the watchers of its key only, and a key is forgotten with its last watcher.
func TestWatch(t *testing.T) {
	t.Parallel()
	var n notify.Notifier[string]
	n.Notify("a") // there is no watcher
	next, stop := n.Watch("a")
	_, stopSecond := n.Watch("a")
	other, stopOther := n.Watch("b")
	changed, quiet := next(), other()
	n.Notify("a")
	select {
	case <-changed:
	default:
		t.Error("a change did not wake its watcher")
	}
	select {
	case <-next():
		t.Error("one change counts twice")
	case <-quiet:
		t.Error("a change woke a watcher of another key")
	default:
	}
	stop()
	stopOther()
	if got := n.Len(); got != 1 {
		t.Errorf("%d keys are watched, want 1", got)
	}
	stopSecond()
	if got := n.Len(); got != 0 {
		t.Errorf("%d keys are watched, want none", got)
	}
}

// TestFollow: everything is sent in order, and the channel is closed by an error of read and by the end of either ctx or done.
func TestFollow(t *testing.T) {
	t.Parallel()
	var n notify.Notifier[string]
	lists := make(chan []int, 3)
	read := func() ([]int, bool, error) {
		select {
		case list, ok := <-lists:
			if !ok {
				return []int{5}, false, errors.New("no more")
			}
			return list, len(list) == 2, nil
		default:
			return nil, false, nil
		}
	}
	lists <- []int{1, 2}
	lists <- []int{3}
	out := notify.Follow(t.Context(), nil, &n, "a", read)
	for want := 1; want <= 3; want++ {
		if got := <-out; got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	}
	lists <- []int{4}
	n.Notify("a")
	if got := <-out; got != 4 {
		t.Errorf("got %d after a change, want 4", got)
	}
	close(lists)
	n.Notify("a")
	if got := <-out; got != 5 {
		t.Errorf("got %d with an error, want 5", got)
	}
	if _, ok := <-out; ok {
		t.Error("the channel is open after an error")
	}
	ended, end := context.WithCancel(t.Context())
	end()
	nothing := func() ([]int, bool, error) { return nil, false, nil }
	if _, ok := <-notify.Follow(ended, nil, &n, "a", nothing); ok {
		t.Error("the channel is open after its context has ended")
	}
	if _, ok := <-notify.Follow(t.Context(), ended.Done(), &n, "a", nothing); ok {
		t.Error("the channel is open after done was closed")
	}
	poll.Until(t, time.Minute, func() bool { return n.Len() == 0 })
}
