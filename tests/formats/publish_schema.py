"""Write docs/use/formats.schema.json: `python -m tests.formats.publish_schema`."""

from __future__ import annotations

import json

from parlab.formats.schema import Document
from tests.formats.golden import HERE

if __name__ == "__main__":
    schema = json.dumps(Document.model_json_schema(), indent=1, ensure_ascii=False)
    (HERE.parents[1] / "docs" / "use" / "formats.schema.json").write_text(schema + "\n")
