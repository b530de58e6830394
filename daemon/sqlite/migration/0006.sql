-- Workspaces, and receipts for what was applied from them. A workspace is found by its sandbox or run as well: sandbox and run
-- are '' where there is none.
CREATE TABLE workspace (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	id      TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	sandbox TEXT NOT NULL,
	run     TEXT NOT NULL,
	state   TEXT NOT NULL,
	doc     TEXT NOT NULL
) STRICT;
CREATE INDEX workspace_age ON workspace (account, seq);
CREATE INDEX workspace_sandbox ON workspace (sandbox, seq) WHERE sandbox <> '';
CREATE INDEX workspace_run ON workspace (run, seq) WHERE run <> '';
CREATE INDEX workspace_state ON workspace (state, seq);

CREATE TABLE sync_receipt (
	seq       INTEGER PRIMARY KEY AUTOINCREMENT,
	id        TEXT NOT NULL UNIQUE,
	account   TEXT NOT NULL,
	workspace TEXT NOT NULL REFERENCES workspace (id) ON DELETE CASCADE,
	sandbox   TEXT NOT NULL,
	run       TEXT NOT NULL,
	doc       TEXT NOT NULL
) STRICT;
CREATE INDEX sync_receipt_age ON sync_receipt (account, seq);
CREATE INDEX sync_receipt_workspace ON sync_receipt (workspace, seq);
CREATE INDEX sync_receipt_sandbox ON sync_receipt (sandbox, seq) WHERE sandbox <> '';
CREATE INDEX sync_receipt_run ON sync_receipt (run, seq) WHERE run <> '';
