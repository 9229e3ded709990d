"""How an engine ends whose model can be neither served nor mended."""

import logging
import os

log = logging.getLogger(__name__)


def end_engine(why: str) -> None:
    """End this process, one worker of an engine, and the engine with it: it is started again and gets the
    weights as a new one. From any thread."""
    log.critical("this engine ends, to be started again: %s", why)
    # at once: vLLM would answer an error and go on, and a call of NCCL cannot be interrupted
    os._exit(1)
