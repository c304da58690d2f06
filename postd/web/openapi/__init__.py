"""What the service does, as an OpenAPI 3.1 document (contract 6).

Paths and methods are those of the Klein applications that serve, schemas those of the msgspec types that decode and
encode, and who may do what is the settings' rules. Words stand in a table for each module of views, under its name:
`posts.py` here is about `postd.web.posts`. Who adds a route adds its words there; a test wants them.
"""
