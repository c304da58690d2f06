-- Idempotency keys with which a post was stored (reference: Idempotency keys).

-- key is a hash of the user and the key; request a hash of the request.
CREATE TABLE idempotency_key (
    key BLOB PRIMARY KEY,
    request BLOB NOT NULL,
    post_id INTEGER NOT NULL,
    expires REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX idempotency_key_in_order_of_expiry ON idempotency_key (expires);
