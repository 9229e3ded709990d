"""What is posted to a reward service, and what its answer says. docs/reference.md tells the same to those who
write one."""

import hashlib
import json
from pathlib import Path
from typing import Any

from grpo_runtime.errors import UserError
from grpo_runtime.rewards.functions import clean_reward
from grpo_runtime.rewards.types import RewardRequest, RewardService

PROTOCOL = 1
AUTHORITY = "ca.crt"
"""The key of a Secret that is no header."""
_FEWEST_SECRET_CHARACTERS = 4


class BadServiceAnswerError(Exception):
    """The answer of a service is no list of rewards. The message says why."""


def request_body(request: RewardRequest, *, name: str, job: str) -> tuple[bytes, str]:
    """The JSON that is posted for a chunk, and its idempotency key, which is the same for the same content.

    Raises ValueError for a column that holds NaN or an infinity, which JSON has not.
    """
    content = {
        "protocol": PROTOCOL,
        "job": job,
        "reward": name,
        "step": request.step,
        "totalSteps": request.total_steps,
        "groupIds": request.group_ids,
        "prompts": request.prompts,
        "completions": request.completions,
        "completionIds": request.completion_ids,
        "prefills": request.prefills,
        "columns": request.columns,
    }
    key = hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
    return json.dumps({**content, "idempotencyKey": key}, allow_nan=False).encode(), key


def read_answer(body: bytes, *, num_samples: int) -> tuple[list[float | None], list[tuple[int, str]]]:
    """The rewards of an answer, [num_samples], and which of them were refused and why.

    Raises BadServiceAnswerError when it holds no list of so many rewards.
    """
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise BadServiceAnswerError(f"its answer is no JSON: {error}") from error
    rewards = answer.get("rewards") if isinstance(answer, dict) else None
    if not isinstance(rewards, list):
        raise BadServiceAnswerError('its answer is no object with a list "rewards"')
    if len(rewards) != num_samples:
        raise BadServiceAnswerError(f"it answered {len(rewards)} rewards for {num_samples} completions")
    values: list[float | None] = []
    refused = []
    for index, reward in enumerate(rewards):
        try:
            values.append(clean_reward(reward))
        except ValueError as error:
            values.append(None)
            refused.append((index, str(error)))
    return values, refused


def service_headers(service: RewardService) -> dict[str, str]:
    """The headers that the Secret of a service holds now: its keys, without AUTHORITY, and their values.

    Raises UserError when the Secret is not there, or when a value is no header.
    """
    if service.folder is None:
        return {}
    if not service.folder.is_dir():
        raise UserError(f"rewards: the Secret {service.secret} of {service.url} is not mounted")
    headers = {}
    # a mounted Secret holds its keys as links, beside links of its own that begin with two dots
    for path in sorted(service.folder.glob("[!.]*")):
        value = path.read_text().strip()
        if path.name != AUTHORITY:
            if not value.isprintable() or not value:
                raise UserError(f"rewards: the key {path.name} of the Secret {service.secret} is no header")
            headers[path.name] = value
    return headers


def authority_file(service: RewardService) -> Path | None:
    """The authority that signs the certificate of the service, where the Secret names one."""
    path = None if service.folder is None else service.folder / AUTHORITY
    return path if path is not None and path.is_file() else None


def without_secrets(text: Any, *, headers: dict[str, str]) -> str:
    """`text` without any value of a header: a service may repeat what it was sent."""
    cleaned = str(text)
    for value in headers.values():
        for part in {value, *value.split()}:
            if len(part) >= _FEWEST_SECRET_CHARACTERS:
                cleaned = cleaned.replace(part, "***")
    return cleaned
