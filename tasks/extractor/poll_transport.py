"""The transport of status polls: httpx skips interim responses, and a 102 to a status poll is an answer."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request

import httpx

from tasks.shared.http.network import Proxies


class PollTransport(httpx.BaseTransport):
    """Sends one request over a connection of its own, with ``urllib``; a 102 is returned like any other status."""

    def __init__(self, verify: ssl.SSLContext, proxies: Proxies) -> None:
        self._verify = verify
        self._proxies = proxies

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Return the answer, its body read. Raises httpx's exceptions."""
        url, proxy = request.url, self._proxies.select(request.url)
        opener = urllib.request.OpenerDirector()  # without the handlers of redirects and errors
        opener.add_handler(urllib.request.ProxyHandler({url.scheme: proxy} if proxy else {}))
        opener.add_handler(urllib.request.HTTPHandler())
        opener.add_handler(urllib.request.HTTPSHandler(context=self._verify))
        asked = urllib.request.Request(str(url), headers=dict(request.headers))  # noqa: S310 - http or https
        try:
            with opener.open(asked, timeout=request.extensions["timeout"]["read"]) as answer:
                return httpx.Response(answer.status, headers=answer.getheaders(), content=answer.read())
        except urllib.error.URLError as error:
            if refused := str(error.reason).partition("Tunnel connection failed: ")[2]:
                raise httpx.ProxyError(refused) from None
            raise httpx.ConnectError("") from error.reason if isinstance(error.reason, OSError) else error
        except TimeoutError as error:
            raise httpx.ReadTimeout("") from error
        except (OSError, http.client.HTTPException) as error:
            raise httpx.ReadError("") from error
