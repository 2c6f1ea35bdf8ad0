"""The S3 remote keeps objects in a bucket, or in another store that speaks S3. It alone imports obstore.

Credentials, region and endpoint come from the variables of AWS (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`,
...), or from the machine's role, as obstore finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from models.errors import NotFound, StoreUnavailable
from models.repository.store.remote import StoredObject

if TYPE_CHECKING:
    from obstore import ObjectMeta

_CONNECT: Final = timedelta(seconds=5)
_READ: Final = timedelta(seconds=20)
"""The longest pause within an answer; an answer itself may take long, for a part of a large file."""
_RETRY: Final = timedelta(seconds=20)
_PART_BYTES: Final = 16 << 20
_SENTENCE: Final = 200
"""The most characters of the library's error that a sentence of ours shows."""
_KINDS: Final = {"kind: Connect": "there is no connection", "kind: Timeout": "there is no answer in time"}
"""What the library's details say of a request that got no answer."""
Result = TypeVar("Result")


class S3Remote:
    """Requests are repeated twice; a creation that its own repetition finds is compared by who asked for it."""

    def __init__(self, url: str, bucket: str, prefix: str) -> None:
        self.url = url
        self._bucket = S3Store(
            bucket,
            prefix=prefix or None,
            client_options={
                "allow_http": True,  # only where AWS_ENDPOINT_URL says http://
                "connect_timeout": _CONNECT,
                "read_timeout": _READ,
                "timeout": timedelta(minutes=10),
            },
            retry_config={"max_retries": 2, "retry_timeout": _RETRY},
        )

    def get(self, path: str) -> bytes | None:
        with self._reaching(path):
            try:
                return bytes(obstore.get(self._bucket, path).bytes())
            except FileNotFoundError:
                return None

    def read(self, path: str, start: int, end: int) -> memoryview:
        with self._reaching(path):
            try:
                return memoryview(obstore.get_range(self._bucket, path, start=start, end=end))
            except FileNotFoundError:
                raise NotFound(f"The store has no {path}") from None

    def file(self, path: str) -> None:
        """Objects of a bucket are no files."""

    def put(self, path: str, data: bytes) -> None:
        with self._reaching(path):
            obstore.put(self._bucket, path, data)

    def create(self, path: str, data: bytes) -> bool:
        def put() -> None:
            obstore.put(self._bucket, path, data, mode="create", use_multipart=False)

        with self._reaching(path):
            try:
                _twice(put)
            except AlreadyExistsError:
                return False
        return True

    def upload(self, path: str, file: Path) -> None:
        with self._reaching(path):
            obstore.put(self._bucket, path, file, chunk_size=_PART_BYTES, max_concurrency=4)

    def head(self, path: str) -> StoredObject | None:
        with self._reaching(path):
            try:
                about = obstore.head(self._bucket, path)
            except FileNotFoundError:
                return None
            return _object(about)

    def list(self, prefix: str) -> list[StoredObject]:
        with self._reaching(prefix):
            return _twice(lambda: [_object(each) for page in obstore.list(self._bucket, prefix) for each in page])

    def delete(self, path: str) -> None:
        with self._reaching(path):
            obstore.delete(self._bucket, path)

    @contextmanager
    def _reaching(self, path: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            raise StoreUnavailable(
                f"The store does not take or give {path}: {_reason(error)}; see that DOSIRAK_STORE_URL, "
                "AWS_ENDPOINT_URL and the credentials are right and the store answers, then try again"
            ) from None


def _twice(call: Callable[[], Result]) -> Result:
    """Calls once more where the library does not: a creation whose answer did not come in time, a list that was cut."""
    try:
        return call()
    except AlreadyExistsError:
        raise
    except BaseError:
        return call()


def _reason(error: Exception) -> str:
    """Returns what the library says without the address and the tries that it says first."""
    line, _, details = str(error).partition("\n")
    for kind, reason in _KINDS.items():
        if kind in details:
            return reason
    before, _, reason = line.partition(" - ")
    return (reason or before.removeprefix("Generic S3 error: "))[:_SENTENCE]


def _object(about: ObjectMeta) -> StoredObject:
    modified = about["last_modified"].timestamp()
    return StoredObject(about["path"], about["size"], modified, about["e_tag"] or str(modified))
