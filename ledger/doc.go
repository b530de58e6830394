// Package ledger enforces budgets and records every model call exactly once, even if processes are killed in between.
//
// The package has two sides. The [Meter] runs where calls are made, in a process without access to files and without privileges.
// It charges budgets in memory, from leases, and appends to a journal whose file descriptor it has received: one record before a
// call is forwarded, with the maximum that the call may cost, and one before the last byte of the answer is sent, with its actual
// cost. A write without a sync survives the death of every process, and takes about one microsecond instead of two hundred.
//
// The [Book] is the engine's side. It stores every lease before a meter receives it, ingests journals into the store, each chunk
// in one transaction together with its offset, and closes them: a call that began and was not settled becomes a row with its
// maximum cost. After a power failure the end of a journal may be missing; then all amounts that its meter had leased count as
// spent. [Service] implements the queries.
//
// Two invariants hold at all times. The cost of a budget's calls plus the leases of all meters never exceeds the limit of the
// budget. The leases of a meter equal its available amount, plus the amounts reserved for calls in progress, plus the journal
// records that the store has not ingested yet.
package ledger
