-- Routes are objects like those of the first schema.
CREATE TABLE route (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	key     TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	name    TEXT,
	state   TEXT NOT NULL,
	doc     TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX route_name ON route (account, name);
CREATE INDEX route_age ON route (account, seq);
CREATE TABLE route_gone (
	n       INTEGER PRIMARY KEY AUTOINCREMENT,
	key     TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	seq     INTEGER NOT NULL
) STRICT;
