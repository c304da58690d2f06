-- Keys under which a post was stored, so that the same request does not store another one (contract 2).

-- key is a hash of whose key it is and of the key; request one of what came with it.
CREATE TABLE idempotency_key (
    key BLOB PRIMARY KEY,
    request BLOB NOT NULL,
    post_id INTEGER NOT NULL,
    expires REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX idempotency_key_in_order_of_expiry ON idempotency_key (expires);
