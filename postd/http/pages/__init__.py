"""HTML pages: the template, and its style sheets."""
