"""The API as an OpenAPI 3.1 document (reference: Operations).

Paths and methods come from the Klein applications that are served, schemas from the msgspec types that decode and
encode, security requirements from the settings. The texts are in one module for each module of views, of the same
name: `posts` here describes `postd.web.posts`. A new route needs an entry there, which a test checks. `samples` makes
the code samples.
"""
