-- Repositories are objects like those of the first schema, known by account and name.
CREATE TABLE repo (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	key     TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	name    TEXT,
	state   TEXT NOT NULL,
	doc     TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX repo_name ON repo (account, name);

-- Deliveries. One is found by its run as well: run is '' where there is none. Not a child of repo: what was delivered stays
-- known after its repository has gone.
CREATE TABLE delivery (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	id      TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	repo    TEXT NOT NULL,
	run     TEXT NOT NULL,
	state   TEXT NOT NULL,
	doc     TEXT NOT NULL
) STRICT;
CREATE INDEX delivery_age ON delivery (account, seq);
CREATE INDEX delivery_repo ON delivery (account, repo, seq);
CREATE INDEX delivery_run ON delivery (run, seq) WHERE run <> '';
CREATE INDEX delivery_state ON delivery (state, seq);
