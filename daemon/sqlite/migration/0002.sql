-- The ledger of model calls, and the budgets they come out of. Amounts of money are billionths of a dollar, times are
-- microseconds since 1970.

-- A journal is what one gateway wrote in its life. Rows stay after the end, so that a journal is not read twice.
CREATE TABLE journal (
	id     TEXT NOT NULL PRIMARY KEY,
	offset INTEGER NOT NULL CHECK (offset >= 0), -- how far it was ingested
	closed INTEGER NOT NULL CHECK (closed IN (0, 1))
) STRICT;
CREATE INDEX journal_open ON journal (id) WHERE closed = 0;

CREATE TABLE call (
	seq         INTEGER PRIMARY KEY AUTOINCREMENT,
	id          TEXT NOT NULL UNIQUE,
	at          INTEGER NOT NULL,
	account     TEXT NOT NULL,
	sandbox     TEXT NOT NULL,
	run         TEXT NOT NULL,
	session     TEXT NOT NULL,
	model       TEXT NOT NULL,
	failed      INTEGER NOT NULL,
	estimated   INTEGER NOT NULL,
	input       INTEGER NOT NULL,
	output      INTEGER NOT NULL,
	cache_read  INTEGER NOT NULL,
	cache_write INTEGER NOT NULL,
	cost        INTEGER NOT NULL,
	doc         TEXT NOT NULL
) STRICT;
CREATE INDEX call_account ON call (account, at);
CREATE INDEX call_at ON call (at);
CREATE INDEX call_sandbox ON call (sandbox);
CREATE INDEX call_run ON call (run);

-- A receipt charges an account for a call, and this key is why nobody is charged twice.
CREATE TABLE receipt (
	source    TEXT NOT NULL,
	reference TEXT NOT NULL, -- run/attempt/call
	call      INTEGER NOT NULL REFERENCES call (seq),
	PRIMARY KEY (source, reference)
) STRICT, WITHOUT ROWID;

-- The sums of call by hour, kept with it in the same transactions: a question about a year reads some thousand rows.
CREATE TABLE usage (
	account     TEXT NOT NULL,
	at          INTEGER NOT NULL, -- beginning of the hour
	sandbox     TEXT NOT NULL,
	run         TEXT NOT NULL,
	session     TEXT NOT NULL,
	model       TEXT NOT NULL,
	calls       INTEGER NOT NULL,
	failed      INTEGER NOT NULL,
	estimated   INTEGER NOT NULL,
	input       INTEGER NOT NULL,
	output      INTEGER NOT NULL,
	cache_read  INTEGER NOT NULL,
	cache_write INTEGER NOT NULL,
	cost        INTEGER NOT NULL,
	PRIMARY KEY (account, at, sandbox, run, session, model)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_at ON usage (at);
CREATE INDEX usage_sandbox ON usage (sandbox);
CREATE INDEX usage_run ON usage (run);
CREATE INDEX usage_session ON usage (session);

CREATE TABLE budget (
	key        TEXT NOT NULL PRIMARY KEY,
	account    TEXT NOT NULL,
	period     TEXT NOT NULL CHECK (period IN ('', 'day', 'month')),
	usd        INTEGER CHECK (usd >= 0), -- NULL: no limit
	tokens     INTEGER CHECK (tokens >= 0),
	calls      INTEGER CHECK (calls >= 0),
	created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX budget_account ON budget (account, key);

-- What was taken of a budget in the period that begins at period_start, 0 for one that lasts for ever.
CREATE TABLE spent (
	budget       TEXT NOT NULL REFERENCES budget (key) ON DELETE CASCADE,
	period_start INTEGER NOT NULL,
	usd          INTEGER NOT NULL,
	tokens       INTEGER NOT NULL,
	calls        INTEGER NOT NULL,
	PRIMARY KEY (budget, period_start)
) STRICT, WITHOUT ROWID;

-- What a journal's holder may spend without asking: handed out, not returned, and not yet in the ledger. It falls below 0
-- when a call took more than was set aside for it, and is made up for by the holder's next lease. Not a child of budget:
-- calls under way when a budget is removed belong to what was held when it is made again.
CREATE TABLE lease (
	journal      TEXT NOT NULL REFERENCES journal (id),
	budget       TEXT NOT NULL,
	period_start INTEGER NOT NULL,
	since        INTEGER NOT NULL, -- calls before that were not covered
	usd          INTEGER NOT NULL,
	tokens       INTEGER NOT NULL,
	calls        INTEGER NOT NULL,
	PRIMARY KEY (journal, budget, period_start)
) STRICT, WITHOUT ROWID;
CREATE INDEX lease_budget ON lease (budget, period_start);

-- What was held by journals whose end was lost with the power: it counts as spent, because it may have been.
CREATE TABLE loss (
	journal      TEXT NOT NULL REFERENCES journal (id),
	budget       TEXT NOT NULL REFERENCES budget (key) ON DELETE CASCADE,
	period_start INTEGER NOT NULL,
	at           INTEGER NOT NULL, -- when it was handed out
	usd          INTEGER NOT NULL,
	tokens       INTEGER NOT NULL,
	calls        INTEGER NOT NULL,
	PRIMARY KEY (journal, budget, period_start)
) STRICT, WITHOUT ROWID;
CREATE INDEX loss_budget ON loss (budget, at);

CREATE TABLE price (
	source   TEXT NOT NULL,
	model    TEXT NOT NULL,
	provider TEXT NOT NULL,
	at       INTEGER NOT NULL,
	doc      TEXT NOT NULL,
	PRIMARY KEY (source, model, provider)
) STRICT, WITHOUT ROWID;
CREATE INDEX price_model ON price (model, at);
