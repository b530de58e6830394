-- Credentials: sealed is the encrypted value, which this database has no key for.
CREATE TABLE credential (
	account TEXT NOT NULL,
	name    TEXT NOT NULL,
	doc     TEXT NOT NULL,
	sealed  BLOB NOT NULL,
	PRIMARY KEY (account, name)
) STRICT;

-- Events form a chain: each row's hash is keyed, and covers the row and the hash of the row before. See chain.go.
ALTER TABLE event ADD COLUMN hash BLOB NOT NULL DEFAULT x'';

-- Where the chain ends. flaw, if not empty, is what was found to be wrong with it by whoever continued it.
CREATE TABLE event_head (
	id   INTEGER PRIMARY KEY CHECK (id = 1),
	seq  INTEGER NOT NULL,
	hash BLOB NOT NULL,
	flaw TEXT NOT NULL,
	mac  BLOB NOT NULL
) STRICT;

-- What was trimmed: the events first to last, with the hash of the last, from which the chain continues.
CREATE TABLE event_gap (
	first INTEGER NOT NULL UNIQUE,
	last  INTEGER PRIMARY KEY,
	hash  BLOB NOT NULL,
	mac   BLOB NOT NULL
) STRICT;
