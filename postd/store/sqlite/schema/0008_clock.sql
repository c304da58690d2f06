-- The clock of the dates in this file never goes back (explanation: Time), and nothing that was used once and removed as
-- expired can be used again.

-- DPoP: the proofs that were used. In the order of expiry, as for nonce_count, but by the clock of the clients.
CREATE TABLE used_proof (
    expires REAL NOT NULL,
    id BLOB NOT NULL UNIQUE,
    PRIMARY KEY (expires, id)
) WITHOUT ROWID;
INSERT INTO used_proof SELECT max(expires), nonce FROM nonce_count WHERE count = 1 GROUP BY nonce;

-- reached: the clock of every process is at this date or later. nonces: all counts of nonces that expired until this date
-- may be removed. proofs: the last expiry of the proofs that are removed.
CREATE TABLE clock (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    reached REAL NOT NULL,
    nonces REAL NOT NULL,
    proofs REAL NOT NULL
);
INSERT INTO clock VALUES (1, 0, 0, 0);

CREATE TRIGGER nonce_count_not_removed BEFORE INSERT ON nonce_count WHEN NEW.expires <= (SELECT nonces FROM clock)
BEGIN
    SELECT RAISE(ABORT, 'the counts of this nonce may be removed');
END;

CREATE TRIGGER used_proof_not_removed BEFORE INSERT ON used_proof WHEN NEW.expires <= (SELECT proofs FROM clock)
BEGIN
    SELECT RAISE(ABORT, 'this proof may be removed');
END;
