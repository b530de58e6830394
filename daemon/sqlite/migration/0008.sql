-- Volumes are objects like those of the first schema.
CREATE TABLE volume (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	key     TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	name    TEXT,
	state   TEXT NOT NULL,
	doc     TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX volume_name ON volume (account, name);
CREATE INDEX volume_age ON volume (account, seq);
CREATE TABLE volume_gone (
	n       INTEGER PRIMARY KEY AUTOINCREMENT,
	key     TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	seq     INTEGER NOT NULL
) STRICT;
