-- What the service must remember of logins. None of it moves the version of the posts.

-- Keys of the service's own, 32 random bytes each: made by whoever asks first, the same for every worker.
CREATE TABLE service_key (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL CHECK (length(value) = 32)
) WITHOUT ROWID;

-- Digest: the counts that a nonce was used with. In the order in which they expire, which is how they go.
CREATE TABLE nonce_count (
    expires REAL NOT NULL,
    nonce BLOB NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (expires, nonce, count)
) WITHOUT ROWID;

-- Sign-ins by form. id_hash is the SHA-256 of what the cookie holds: who reads this table can sign in as nobody.
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

-- Failed logins, by the hashes of what they are counted for.
CREATE TABLE failure (
    number INTEGER PRIMARY KEY,
    key BLOB NOT NULL,
    expires REAL NOT NULL
);
CREATE INDEX failure_in_order_of_expiry ON failure (expires);
CREATE INDEX failure_of_key ON failure (key, expires);
