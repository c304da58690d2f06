-- Digest: the counts with which a nonce was used, 1,024 of them in a row: `used` is a number in big-endian order, whose bit
-- n stands for the count 1,024 * part + n. A row for each count would change as many pages as there are clients.
CREATE TABLE nonce_use (
    nonce BLOB NOT NULL,
    part INTEGER NOT NULL,
    used BLOB NOT NULL,
    expires REAL NOT NULL,
    PRIMARY KEY (nonce, part)
) WITHOUT ROWID;
CREATE INDEX nonce_use_in_order_of_expiry ON nonce_use (expires);

-- All counts of these parts count as used: clients take another nonce then (stale=true).
INSERT INTO nonce_use
SELECT nonce, count / 1024, x'ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff', max(expires) FROM nonce_count GROUP BY nonce, count / 1024;
DROP TABLE nonce_count;
