-- Objects have one table per type, all of one shape: the columns that queries need, and the object as JSON in doc.
--
-- seq is the order of creation. AUTOINCREMENT: a number is not given again after the newest row is deleted, so that a
-- position in a listing never moves. name is NULL where an object has none: NULLs are distinct in a unique index.

CREATE TABLE sandbox (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	key     TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	name    TEXT,
	state   TEXT NOT NULL,
	doc     TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX sandbox_name ON sandbox (account, name);
CREATE INDEX sandbox_age ON sandbox (account, seq);

CREATE TABLE snapshot (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	key     TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	name    TEXT,
	state   TEXT NOT NULL,
	doc     TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX snapshot_name ON snapshot (account, name);
CREATE INDEX snapshot_age ON snapshot (account, seq);

CREATE TABLE template (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	key     TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	name    TEXT,
	state   TEXT NOT NULL,
	doc     TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX template_name ON template (account, name);

CREATE TABLE image (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	key     TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	name    TEXT,
	state   TEXT NOT NULL,
	doc     TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX image_name ON image (account, name);

-- Where deleted objects stood in the order of creation, so that a listing can continue after an object that has gone
-- meanwhile. Only the newest are kept.
CREATE TABLE sandbox_gone (
	n       INTEGER PRIMARY KEY AUTOINCREMENT,
	key     TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	seq     INTEGER NOT NULL
) STRICT;
CREATE TABLE snapshot_gone (
	n       INTEGER PRIMARY KEY AUTOINCREMENT,
	key     TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	seq     INTEGER NOT NULL
) STRICT;

-- The bounds are those of the uids set aside for accounts. An account's files may outlive it, so a range is given once:
-- the next one follows the greatest, and that holds because accounts are not deleted.
CREATE TABLE account (
	name     TEXT NOT NULL PRIMARY KEY,
	uid_base INTEGER NOT NULL UNIQUE CHECK (uid_base BETWEEN 0x50000000 AND 0x6eff0000 AND uid_base % 65536 = 0),
	doc      TEXT NOT NULL
) STRICT;
CREATE TRIGGER account_stays BEFORE DELETE ON account
BEGIN
	SELECT raise(ABORT, 'accounts are not deleted: their uids must not be given again');
END;

CREATE TABLE token (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	id      TEXT NOT NULL UNIQUE,
	account TEXT NOT NULL,
	hash    BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
	used_at INTEGER, -- microseconds since 1970
	doc     TEXT NOT NULL
) STRICT;
CREATE INDEX token_account ON token (account, seq);

CREATE TABLE event (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	at      INTEGER NOT NULL, -- microseconds since 1970
	account TEXT NOT NULL,
	subject TEXT NOT NULL,
	doc     TEXT NOT NULL
) STRICT;
CREATE INDEX event_account ON event (account, seq);
CREATE INDEX event_subject ON event (account, subject, seq);

CREATE TABLE answer (
	seq         INTEGER PRIMARY KEY,
	account     TEXT NOT NULL,
	key         TEXT NOT NULL,
	fingerprint BLOB NOT NULL CHECK (length(fingerprint) = 32),
	at          INTEGER NOT NULL, -- microseconds since 1970
	answer      BLOB,             -- NULL while the request is being worked on
	UNIQUE (account, key)
) STRICT;
