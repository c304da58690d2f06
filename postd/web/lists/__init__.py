"""Lists of posts as they are sent: kept encoded and compressed for one version, streamed if they are long.

`post_lists` is the entry. docs/explanation/lists.md has the reasons.
"""
