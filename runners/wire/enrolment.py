"""Give a node a key of its own with a one-time code: `python -m runners.node.daemon enrol --node NAME --code CODE`."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from runners.supervisor.shipping import BrokerAway
from runners.wire.agreement import new_pair
from runners.wire.broker import Broker
from runners.wire.keys import NodeKeys
from runners.wire.protocol import Enrol
from runners.wire.trust import Key, code_key

ANSWER_WITHIN_S = 60.0
REPEAT_S = 5.0

log = logging.getLogger(__name__)


def enrol(state_dir: Path, node: str, code: str, redis_url: str) -> int:
    """Agree on a key with the server and store it; return the exit code. Raises ValueError with a remedy."""
    key_id, _, secret = code.strip().partition("-")
    if not key_id or not secret:
        raise ValueError("--code is missing or incomplete; an administrator creates one in the admin, Node keys")
    if not redis_url:
        raise ValueError("REDIS_URL is not set; set it to that of the server, like redis://:password@server:6379/0")
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys = NodeKeys(state_dir, node, None)
    broker, pair, signer = Broker(redis_url, node), new_pair(), Key(key_id, code_key(secret, node, key_id))
    deadline, sent_at = time.monotonic() + ANSWER_WITHIN_S, float("-inf")
    while (now := time.monotonic()) < deadline:
        try:
            if now - sent_at > REPEAT_S:
                broker.send_enrol(Enrol(key_id=key_id, public=pair.public), signer)
                sent_at = now
            answer = broker.enrolled(key_id, pair.public, signer)
        except BrokerAway as error:
            raise ValueError(f"REDIS_URL cannot be reached: {error}; check it and the network") from None
        if answer is not None:
            keys.enrol(pair, key_id, answer)
            log.info("node %s is enrolled; start its daemon on %s without PARLAB_NODE_KEY", node, state_dir)
            return 0
        time.sleep(0.2)
    raise ValueError(
        f"the server has not answered within {ANSWER_WITHIN_S:.0f} s; check --node (the code is for one name only),"
        " the code, and that a worker of the server is running; refused messages are listed in the admin"
    )
