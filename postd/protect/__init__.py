"""Authentication of HTTP requests: the guard before a resource, and what is between header fields and credentials."""
