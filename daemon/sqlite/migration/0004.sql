-- Runs on other machines that use the model gateway of this one. The row of one that has ended stays for a while: its id is
-- its account's, to which calls that were under way are charged.
CREATE TABLE gateway_run (
	run      TEXT NOT NULL PRIMARY KEY,
	account  TEXT NOT NULL,
	ended_at INTEGER, -- microseconds since 1970; NULL: it has not ended
	doc      TEXT NOT NULL
) STRICT;
CREATE INDEX gateway_run_account ON gateway_run (account, run) WHERE ended_at IS NULL;
CREATE INDEX gateway_run_ended ON gateway_run (ended_at) WHERE ended_at IS NOT NULL;
