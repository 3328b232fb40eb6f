"""python -m web > docs/openapi.json: the routes as a document."""

from __future__ import annotations

import json

from web.openapi import document

print(json.dumps(document(), indent=1, ensure_ascii=False))
