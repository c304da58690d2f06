"""The pages on which users manage their accounts (reference: Accounts)."""
