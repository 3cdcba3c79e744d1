"""Pictures that a page refers to -> snapshots of kind `image`, with the picture itself if it was supplied."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from parlab.formats.schema import Document
from parlab.ingest.files.received import PictureLookup
from parlab.lab.models import Picture, Snapshot, Source
from parlab.lab.services import storable
from runners.config import digest
from runners.wire.protocol import MAX_BATCH_BYTES

MAX_PICTURE_BYTES = 16 * MAX_BATCH_BYTES
_MEDIA_TYPES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"RIFF": "image/webp",
}


def images_store(source: Source, document: Document, pictures: PictureLookup | None) -> None:
    """Store each reference of a page to a picture as a snapshot, and each picture that `pictures` returns."""
    experiment = source.experiment
    existing_digests = set(experiment.snapshots.filter(kind=Snapshot.Kind.IMAGE).values_list("digest", flat=True))
    stored_pictures: dict[str, Picture] = {picture.reference: picture for picture in source.pictures.defer("data")}
    snapshots = []
    for image in document.images:
        reference = storable.text(image.source)[:300]
        if reference not in stored_pictures and (picture := _picture(source, reference, pictures)):
            stored_pictures[reference] = picture
            picture.save(force_insert=True)
        picture_facts = _picture_facts(stored_pictures.get(reference))
        content = {"source": source.name, **storable.json(image.model_dump()), **picture_facts}
        name = digest(content)
        if name not in existing_digests:
            existing_digests.add(name)
            snapshots.append(Snapshot(experiment=experiment, kind=Snapshot.Kind.IMAGE, digest=name, content=content))
    Snapshot.objects.bulk_create(snapshots)


def _picture_facts(picture: Picture | None) -> Mapping[str, Any]:
    return {} if picture is None else {"sha256": picture.sha256, "media_type": picture.media_type}


def _picture(source: Source, reference: str, pictures: PictureLookup | None) -> Picture | None:
    data = pictures(reference) if pictures else None
    media_type = next((name for mark, name in _MEDIA_TYPES.items() if data and data.startswith(mark)), None)
    if not data or media_type is None or len(data) > MAX_PICTURE_BYTES:
        return None
    return Picture(
        source=source, reference=reference, media_type=media_type, sha256=hashlib.sha256(data).hexdigest(), data=data
    )
