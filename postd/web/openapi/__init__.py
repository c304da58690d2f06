"""The API as an OpenAPI 3.1 document, and as a page (reference: Operations).

Paths and methods come from the Klein applications that are served, schemas from the msgspec types that decode and
encode, security requirements from the settings. The texts are in one module for each section: `posts` describes
`postd.web.posts`, `metadata` the paths of section Metadata. A new route needs an entry there, which a test checks.
`docs` serves both forms; `page` makes the page from the document.
"""
