-- Agents, and conversations with them, are objects like those of the first schema. The name of an agent is its id; that of a
-- session is its agent, user and key.
CREATE TABLE agent (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	key     TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	name    TEXT,
	state   TEXT NOT NULL,
	doc     TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX agent_name ON agent (account, name);

CREATE TABLE session (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	key     TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	name    TEXT,
	state   TEXT NOT NULL,
	doc     TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX session_name ON session (account, name);
CREATE INDEX session_age ON session (account, seq);
CREATE TABLE session_gone (
	n       INTEGER PRIMARY KEY AUTOINCREMENT,
	key     TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	seq     INTEGER NOT NULL
) STRICT;

-- Runs. The column children holds, not the one in doc: it is counted up without reading prompts and answers, which can be
-- long, and for the same reason doc is the last column. Times are microseconds since 1970.
CREATE TABLE run (
	seq      INTEGER PRIMARY KEY AUTOINCREMENT,
	id       TEXT NOT NULL UNIQUE,
	account  TEXT NOT NULL,
	agent    TEXT NOT NULL,
	state    TEXT NOT NULL,
	session  TEXT,             -- NULL: none
	parent   TEXT,             -- NULL: it is not part of another
	ended_at INTEGER,          -- NULL: it has not ended
	children INTEGER NOT NULL, -- runs that were started from within, at any depth
	most     INTEGER NOT NULL, -- what children may become
	doc      TEXT NOT NULL
) STRICT;
CREATE INDEX run_age ON run (account, seq);
CREATE INDEX run_agent ON run (account, agent, seq);
CREATE INDEX run_state ON run (state, account, seq);
CREATE INDEX run_session ON run (session, seq) WHERE session IS NOT NULL;
CREATE INDEX run_parent ON run (parent, seq) WHERE parent IS NOT NULL;
CREATE INDEX run_ended ON run (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX run_live ON run (account) WHERE ended_at IS NULL AND parent IS NULL;

-- The runs that each run is part of.
CREATE TABLE run_under (
	ancestor TEXT NOT NULL, -- its id: it may have been deleted
	run      INTEGER NOT NULL REFERENCES run (seq) ON DELETE CASCADE,
	PRIMARY KEY (ancestor, run)
) STRICT, WITHOUT ROWID;
CREATE INDEX run_under_run ON run_under (run);

-- What happened in runs. Not a child of run: events are many, and are deleted in batches after the run has gone.
CREATE TABLE run_event (
	run INTEGER NOT NULL, -- seq of the run
	seq INTEGER NOT NULL, -- from 1, without gaps
	doc TEXT NOT NULL,
	PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;

-- Where deleted runs stood in the order of creation, and whether their events have gone too. Of those that have, only the
-- newest are kept.
CREATE TABLE run_gone (
	n       INTEGER PRIMARY KEY AUTOINCREMENT,
	id      TEXT NOT NULL,
	account TEXT NOT NULL,
	seq     INTEGER NOT NULL UNIQUE,
	cleared INTEGER NOT NULL CHECK (cleared IN (0, 1))
) STRICT;
CREATE INDEX run_gone_id ON run_gone (id);
CREATE INDEX run_gone_left ON run_gone (n) WHERE cleared = 0;

-- The ledger can be asked about agents and users, which the calls before have in doc. Sums are made anew for that, exactly,
-- and stop at a bound: see saturate.go.
ALTER TABLE call ADD COLUMN agent TEXT NOT NULL DEFAULT '';
ALTER TABLE call ADD COLUMN user TEXT NOT NULL DEFAULT '';
UPDATE call SET agent = coalesce(doc ->> '$.agent', ''), user = coalesce(doc ->> '$.user', '');

DROP TABLE usage;
CREATE TABLE usage (
	account     TEXT NOT NULL,
	at          INTEGER NOT NULL, -- beginning of the hour
	sandbox     TEXT NOT NULL,
	run         TEXT NOT NULL,
	session     TEXT NOT NULL,
	agent       TEXT NOT NULL,
	user        TEXT NOT NULL,
	model       TEXT NOT NULL,
	calls       INTEGER NOT NULL,
	failed      INTEGER NOT NULL,
	estimated   INTEGER NOT NULL,
	input       INTEGER NOT NULL,
	output      INTEGER NOT NULL,
	cache_read  INTEGER NOT NULL,
	cache_write INTEGER NOT NULL,
	cost        INTEGER NOT NULL,
	PRIMARY KEY (account, at, sandbox, run, session, agent, user, model)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_at ON usage (at);
CREATE INDEX usage_sandbox ON usage (sandbox);
CREATE INDEX usage_run ON usage (run);
CREATE INDEX usage_session ON usage (session);
INSERT INTO usage SELECT account, at - at % 3600000000, sandbox, run, session, agent, user, model, count(*), sum(failed), sum(estimated),
	CASE WHEN total(input) >= 9e18 THEN 9000000000000000000 ELSE sum(input >> 32) * 4294967296 + sum(input & 4294967295) END,
	CASE WHEN total(output) >= 9e18 THEN 9000000000000000000 ELSE sum(output >> 32) * 4294967296 + sum(output & 4294967295) END,
	CASE WHEN total(cache_read) >= 9e18 THEN 9000000000000000000 ELSE sum(cache_read >> 32) * 4294967296 + sum(cache_read & 4294967295) END,
	CASE WHEN total(cache_write) >= 9e18 THEN 9000000000000000000 ELSE sum(cache_write >> 32) * 4294967296 + sum(cache_write & 4294967295) END,
	CASE WHEN total(cost) >= 9e18 THEN 9000000000000000000 ELSE sum(cost >> 32) * 4294967296 + sum(cost & 4294967295) END
	FROM call GROUP BY 1, 2, 3, 4, 5, 6, 7, 8;

-- Which runs with calls in the ledger are part of which.
CREATE TABLE lineage (
	ancestor TEXT NOT NULL,
	account  TEXT NOT NULL,
	run      TEXT NOT NULL,
	PRIMARY KEY (ancestor, account, run)
) STRICT, WITHOUT ROWID;
