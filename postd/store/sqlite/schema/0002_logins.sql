-- The state of authentication. None of it changes the version of the posts.

-- Service keys, 32 random bytes each: created on first use, the same for all workers.
CREATE TABLE service_key (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL CHECK (length(value) = 32)
) WITHOUT ROWID;

-- Digest: the counts with which a nonce was used. In the order of expiry, in which they are purged.
CREATE TABLE nonce_count (
    expires REAL NOT NULL,
    nonce BLOB NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (expires, nonce, count)
) WITHOUT ROWID;

-- Sessions. id_hash is the SHA-256 of the cookie: this table gives no access to a session.
CREATE TABLE session (
    id_hash BLOB PRIMARY KEY,
    username TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    created REAL NOT NULL,
    seen REAL NOT NULL,
    expires REAL NOT NULL,
    ends REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX session_in_order_of_expiry ON session (expires);
CREATE INDEX session_of_user ON session (username);

-- Failed logins, by hashed keys (postd.auth.throttle).
CREATE TABLE failure (
    number INTEGER PRIMARY KEY,
    key BLOB NOT NULL,
    expires REAL NOT NULL
);
CREATE INDEX failure_in_order_of_expiry ON failure (expires);
CREATE INDEX failure_of_key ON failure (key, expires);
