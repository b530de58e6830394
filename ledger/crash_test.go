package ledger

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson"
)

// gatewayEnv makes the test binary run as a gateway that makes calls until it is killed. Descriptor 3 is its journal. It
// communicates with its lessor in lines over standard input and output.
const gatewayEnv = "CAISSON_TEST_LEDGER_GATEWAY"

func TestMain(m *testing.M) {
	if guest := os.Getenv(gatewayEnv); guest != "" {
		fmt.Fprintln(os.Stderr, callUntilKilled(guest))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// callUntilKilled makes calls in several goroutines. It prints "begin ID" after a call is reserved, before it would be forwarded,
// and "settle ID tokens" after it is settled, before its last byte.
func callUntilKilled(guest string) error {
	sandbox, account, _ := strings.Cut(guest, " ")
	g := caisson.Guest{Sandbox: caisson.ID(sandbox), Account: account, Run: sandbox}
	pipe := &pipeLessor{in: bufio.NewReader(os.Stdin)}
	m, err := NewMeter(Config{Segment: Segment{Journal: os.NewFile(3, "journal"), Lessor: pipe}})
	if err != nil {
		return err
	}
	errs := make(chan error)
	for i := range 8 {
		go func() {
			rng := rand.New(rand.NewPCG(uint64(i), uint64(os.Getpid())))
			for {
				c := call(g)
				c.ID = caisson.NewID(caisson.CallPrefix)
				r, err := m.Reserve(context.Background(), c, demand(10, 90))
				if err != nil {
					errs <- err
					return
				}
				pipe.say("begin %s", c.ID)
				took := rng.Int64N(91)
				if err := r.Settle(answer(10, took)); err != nil {
					errs <- err
					return
				}
				pipe.say("settle %s %d", c.ID, 10+took)
			}
		}()
	}
	return <-errs
}

// pipeLessor sends lease requests as lines.
type pipeLessor struct {
	mu  sync.Mutex // serializes requests
	in  *bufio.Reader
	out sync.Mutex
}

func (p *pipeLessor) say(format string, args ...any) {
	p.out.Lock()
	defer p.out.Unlock()
	fmt.Printf(format+"\n", args...)
}

func (p *pipeLessor) Lease(_ context.Context, _, budget string, need, want caisson.Amount) (l caisson.Lease, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.say("lease %s %d %d %d %d %d %d", budget, need.USD, need.Tokens, need.Calls, want.USD, want.Tokens, want.Calls)
	g := &l.Granted
	_, err = fmt.Fscanln(p.in, &l.Unlimited, (*int64)(&g.USD), &g.Tokens, &g.Calls)
	return l, err
}

func (p *pipeLessor) Return(context.Context, string, caisson.Amount) error { return nil }

// child is a gateway in a separate process, with its output.
type child struct {
	journal caisson.ID
	begun   map[caisson.ID]bool
	settled map[caisson.ID]int64
}

// runAndKill starts a gateway and kills it after it has printed the given number of lines.
func (w *world) runAndKill(g caisson.Guest, lines int) *child {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	journal, f, err := w.book.Begin(ctx)
	must(w.t, err)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), gatewayEnv+"="+string(g.Sandbox)+" "+g.Account)
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{f}
	in := get(cmd.StdinPipe())(w.t)
	out := get(cmd.StdoutPipe())(w.t)
	must(w.t, cmd.Start())
	must(w.t, f.Close())
	c := &child{journal: journal, begun: map[caisson.ID]bool{}, settled: map[caisson.ID]int64{}}
	lessor := w.book.Lessor(journal)
	seen := 0
	for s := bufio.NewScanner(out); s.Scan(); seen++ {
		var id caisson.ID
		var took int64
		if n, _ := fmt.Sscanf(s.Text(), "settle %s %d", &id, &took); n == 2 {
			c.settled[id] = took
		} else if n, _ := fmt.Sscanf(s.Text(), "begin %s", &id); n == 1 {
			c.begun[id] = true
		} else {
			var key string
			var need, want caisson.Amount
			if n, err := fmt.Sscanf(s.Text(), "lease %s %d %d %d %d %d %d", &key, (*int64)(&need.USD), &need.Tokens, &need.Calls,
				(*int64)(&want.USD), &want.Tokens, &want.Calls); n != 7 {
				w.t.Errorf("the gateway said %q: %v", s.Text(), err)
			}
			l := get(lessor.Lease(ctx, "a", key, need, want))(w.t)
			fmt.Fprintln(in, l.Unlimited, int64(l.Granted.USD), l.Granted.Tokens, l.Granted.Calls)
		}
		if seen == lines {
			must(w.t, cmd.Process.Kill())
		}
	}
	_ = cmd.Wait()
	if seen < lines {
		w.t.Fatalf("the gateway ended by itself after %d lines", seen)
	}
	return c
}

// TestPromise5KilledGateways kills gateways and the engine at random points, and checks that every call is in the ledger once.
func TestPromise5KilledGateways(t *testing.T) {
	w := newWorld(t)
	g := w.guest("a")
	const tokens = 50_000_000
	w.budget("account/a", caisson.Limits{Tokens: limit[int64](tokens)}, "")
	rng := rand.New(rand.NewPCG(1, 2))
	begun, settled := map[caisson.ID]bool{}, map[caisson.ID]int64{}
	var held int64
	for round := range 12 {
		c := w.runAndKill(g, 1+rng.IntN(800))
		for id := range c.begun {
			begun[id] = true
		}
		for id, took := range c.settled {
			begun[id], settled[id] = true, took
		}
		if b := w.look("account/a"); b.Used.Tokens+b.Held.Tokens > tokens || b.Held.Tokens == 0 {
			t.Errorf("round %d: used %d, held %d", round, b.Used.Tokens, b.Held.Tokens)
		}
		switch round % 3 {
		case 0: // the supervisor notices the death of the gateway
			must(t, w.book.Finish(t.Context(), c.journal))
			must(t, w.book.Finish(t.Context(), c.journal))
		case 1: // the engine was killed too
			w.restart()
		case 2: // both, and the machine lost power, but the file system kept all writes
			w.boot = fmt.Sprint("boot-", round)
			before := w.look("account/a")
			w.restart()
			after := w.look("account/a")
			// Nothing is available again: all held amounts are rows, or count as spent.
			if after.Used.Tokens < before.Used.Tokens+before.Held.Tokens || after.Held.Tokens != 0 {
				t.Errorf("round %d: before %+v %+v, after %+v %+v", round, before.Used, before.Held, after.Used, after.Held)
			}
			held += after.Used.Tokens - sum(w.rows()).Tokens - held
		}
	}
	rows := w.rows()
	there := map[caisson.ID]bool{}
	for _, row := range rows {
		if there[row.ID] {
			t.Errorf("call %s is in the ledger twice", row.ID)
		}
		there[row.ID] = true
		took, ok := settled[row.ID]
		lost := row.Error == "lost" && row.Estimated && row.Status == 0 && row.Tokens.Total() == 100
		switch {
		case ok && row.Tokens.Total() != took:
			t.Errorf("call %s took %d tokens, the ledger says %d", row.ID, took, row.Tokens.Total())
		case !ok && !lost && row.Status != 200: // settled, but killed before it could print the line
			t.Errorf("call %s: %+v", row.ID, row)
		}
	}
	for id := range begun {
		if !there[id] {
			t.Errorf("call %s is not in the ledger", id)
		}
	}
	if b := w.look("account/a"); b.Used.Tokens != sum(rows).Tokens+held || b.Held.Tokens != 0 {
		t.Errorf("used %d, held %d; calls took %d, %d were lost", b.Used.Tokens, b.Held.Tokens, sum(rows).Tokens, held)
	}
	if entries := get(os.ReadDir(w.path + "/ledger"))(t); len(entries) != 0 {
		t.Errorf("journals are left: %v", entries)
	}
	if len(rows) < 500 {
		t.Errorf("only %d calls were made", len(rows))
	}
}
