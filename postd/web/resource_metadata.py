"""The route of the protected resource metadata (RFC 9728)."""

from postd.protect.bearer import METADATA_PATH, MetadataView
from postd.web.server.routing import Application


class ResourceMetadata(MetadataView):
    """The page that a challenge's `resource_metadata` leads to."""

    app = Application()
    app.route(METADATA_PATH, methods=["GET"])(MetadataView.show)
