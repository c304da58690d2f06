-- A nonce count is used once, whatever its expiry: that of a DPoP proof depends on its iat, and on settings.
CREATE UNIQUE INDEX nonce_count_once ON nonce_count (nonce, count);
