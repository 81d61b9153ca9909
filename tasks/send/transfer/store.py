"""The FHIR store that a transfer goes to: one method for each call (document 3 §7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from tasks.send.transfer.documents import ZIP, BinaryJson, Document, Transfer, read_documents
from tasks.shared.errors import NetworkError, ServiceError
from tasks.shared.http_old.answer import Answer, RequestContext, wrong_answer
from tasks.shared.http_old.body import Body, FileBody
from tasks.shared.http_old.client import DEFAULT_TRANSIENT, ServiceClient


@dataclass(frozen=True)
class TransferBounds:
    """Numbers that are not configuration: bytes and seconds.

    Above ``raw_above`` a zip travels as it is instead of as Base64 in JSON. One upload may take a second for each
    ``upload_rate`` bytes more than other requests: what a line of 2 Mbit/s takes.
    """

    raw_above: int = 64 * 1024 * 1024
    upload_rate: int = 256 * 1024

    def upload_timeout(self, timeout: float, length: int) -> float:
        """Return the timeout in seconds for an upload of ``length`` bytes; other requests have ``timeout``."""
        return timeout + length / self.upload_rate


_FHIR: Final = "application/fhir+json"
_PUT: Final = {"Content-Type": _FHIR, "Accept": _FHIR, "Prefer": "return=minimal"}
# A version or lock conflict: the id is ours alone, so another attempt settles it.
_TRANSIENT: Final = DEFAULT_TRANSIENT | {409}
# Not there, or a server that cannot say: then it is uploaded, which changes nothing.
_NOT_THERE: Final = frozenset({400, 404, 405, 406, 410, 415, 422, 501})
_SEARCH: Final = "search DocumentReference"


class FhirStore:
    """The store at the URL ``base``, which ends with ``/fhir``. ``timeout`` in seconds."""

    def __init__(self, client: ServiceClient, base: str, bounds: TransferBounds, *, timeout: float) -> None:
        self.base = base
        self._client = client
        self._bounds = bounds
        self._timeout = timeout

    def find(self, transfer: Transfer) -> list[Document]:
        """Return the documents that the receiving process would find, in its order.

        Raises ``ServiceError`` ``transfer-answer`` when the server answers something else than a searchset of this
        project's documents.
        """
        answer = self._client.send(
            "GET",
            f"{self.base}/DocumentReference?{transfer.query}",
            operation=_SEARCH,
            # HAPI answers a search of the last minute from its memory otherwise.
            headers={"Accept": _FHIR, "Cache-Control": "no-cache"},
        )
        documents = read_documents(answer.body) if answer.status == 200 and answer.says_json else None
        if documents is None:
            raise self._wrong_search(answer, "something that is no result")
        if not all(map(transfer.concerns, documents)):
            # Written onto, one of them would take another project's data away.
            raise self._wrong_search(answer, "documents of another project")
        return documents

    def _wrong_search(self, answer: Answer, what: str) -> ServiceError:
        where = RequestContext("send", _SEARCH, "GET", f"{self.base}/DocumentReference")
        hint = "is services.send.url the root of a FHIR server?"
        return wrong_answer(answer, where, f"with {what}", reference="transfer-answer", hint=hint)

    def holds(self, identity: str, size: int) -> bool:
        """Return whether the Binary exists and has this size."""
        answer = self._client.send(
            "HEAD",
            f"{self.base}/Binary/{identity}",
            operation="look for Binary",
            headers={"Accept": ZIP, "Accept-Encoding": "identity"},
            timeout=self._bounds.upload_timeout(self._timeout, size),  # some servers read all of it to answer
            accept=_NOT_THERE,
        )
        return answer.status == 200 and answer.headers.get("content-length") == str(size)

    def put_binary(self, identity: str, path: Path, size: int, *, sent: Callable[[int], None]) -> None:
        """Upload the zip at ``path``; ``sent`` is told how many bytes of it have left in this attempt.

        Raises ``ServiceError``: ``transfer-too-large`` for 413, ``transfer-store-full`` for 507.
        """
        content = FileBody(path, size, sent=sent)
        body: Body = content
        headers = _PUT | {"Content-Type": ZIP}
        if size <= self._bounds.raw_above:
            body, headers = BinaryJson(identity, content), _PUT
        try:
            self._client.send(
                "PUT",
                f"{self.base}/Binary/{identity}",
                operation="upload Binary",
                content=body,
                headers=headers,
                timeout=self._bounds.upload_timeout(self._timeout, body.length),
                transient=_TRANSIENT,
                wants_body=False,
            )
        except ServiceError as error:
            _explain(error, body.length)
        except NetworkError as error:
            if error.reference == "connection-broken":
                # A server that answers 413 and hangs up while it is still being sent to is not heard.
                large = f"{body.length:,} bytes"
                error.hint = f"{error.hint}; if it breaks off every time: does every proxy on the way take {large}?"
            raise

    def put_document(self, identity: str, document: bytes) -> None:
        """Store the DocumentReference: the commit."""
        self._client.send(
            "PUT",
            f"{self.base}/DocumentReference/{identity}",
            operation="store DocumentReference",
            content=document,
            headers=_PUT,
            transient=_TRANSIENT,
            wants_body=False,
        )


def _explain(error: ServiceError, length: int) -> NoReturn:
    """Raise the error as a person handles it who knows that the request is one large file."""
    match error.answered:
        case 413:
            reference, what = "transfer-too-large", f"the server refuses a request of {length:,} bytes"
            hint = "raise the limit for request bodies on the server and on any proxy before it"
        case 507:
            reference, what = "transfer-store-full", "the store is full"
            hint = "free space on the server, then continue the job"
        case _:
            raise error
    raise ServiceError(
        reference,
        f"send: the zip file was not stored: {what}",
        context=error.context,
        hint=hint,
        operation=error.operation,
        status=error.status,
    ) from None
