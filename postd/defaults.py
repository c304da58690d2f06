"""The defaults of options that the settings file and `postd.protect` have in common."""

DIGEST_ALGORITHMS = ("SHA-256", "MD5")
"""Those of applications; the specification gives the server MD5 alone."""

NONCE_LIFETIME_S = 5 * 60
SESSION_IDLE_S = 30 * 60
SESSION_LIFETIME_S = 12 * 3600
SESSIONS_PER_ACCOUNT, TOKENS_PER_ACCOUNT, PASSKEYS_PER_ACCOUNT = 100, 100, 20
TOKEN_LIFETIME_S = 90 * 86400
FAILURES, ADDRESS_FAILURES, ACCOUNT_FAILURES = 10, 50, 100
FAILURE_WINDOW_S = 5 * 60
