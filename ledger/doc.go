// Package ledger makes budgets hold and has every model call in the ledger exactly once, whatever dies in between.
//
// It has two sides. The [Meter] is where calls are made, in a process without files or privileges: it spends from budgets
// in memory, out of leases, and appends to a journal whose descriptor it was given: a record before a call is forwarded,
// with what the call may take at most, and one before the last byte of the answer, with what it took. A write survives the
// death of every process, and costs a microsecond where a sync would cost two hundred.
//
// The [Book] is the engine's side. It records what meters hold of budgets before they have it, reads journals into the
// store, each stretch in one transaction with how far it got, and closes them: a call that began and was not settled
// becomes a row with the most it can have taken. After a power failure the end of a journal may be missing; then what its
// meter held counts as spent. [Service] answers questions about all of it.
//
// The books balance at every moment: what a budget's calls took, plus what meters hold, is never more than its limit, and
// what a meter holds is what it has free, plus what it set aside for calls under way, plus what the journal says and
// the store has not read yet.
package ledger
