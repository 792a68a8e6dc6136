"""What the operator's own service is told, and asked, about telephone calls: JSON by POST to one URL."""

from __future__ import annotations

import logging
from typing import Literal
from urllib.error import URLError
from urllib.request import Request, urlopen

import msgspec
from msgspec import UNSET, UnsetType

from duologue.engine.executors.threads import run_in_thread

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0


class CallNotice(msgspec.Struct, frozen=True, kw_only=True):
    """The body. ``call.transfer`` asks: any status but 2xx means no; to the other two the answer does not matter."""

    type: Literal["call.started", "call.ended", "call.transfer"]
    call_id: str
    """The id under which sidebands join the call, and HTTP hangs it up."""
    stream_sid: str
    call_sid: str
    """The provider's own ids."""
    ended_by: Literal["caller", "server"] | UnsetType = UNSET
    target_uri: str | UnsetType = UNSET
    """Where to pass the call on to: ``tel:`` or ``sip:``."""


async def notify(url: str | None, notice: CallNotice) -> bool:
    """Post a notice. False: there is nobody to tell, or no good answer came within five seconds."""
    if url is None:
        return False

    def post() -> bool:
        request = Request(url, msgspec.json.encode(notice), {"Content-Type": "application/json"}, method="POST")
        with urlopen(request, timeout=TIMEOUT_S) as response:  # the pattern of the deploy key allows http(s) only
            return 200 <= response.status < 300

    try:
        return bool(await run_in_thread(post, "call-notice"))
    except (URLError, OSError, ValueError) as error:
        logger.warning("%s could not be posted to the callback URL: %s", notice.type, error)
        return False
